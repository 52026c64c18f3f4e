"""A quick verdict on each job of a listing that nobody watches: one ``attach`` for each, told to say what it knows after 5 s."""

import os
import signal
import subprocess
import tempfile
import time
from typing import IO

import msgspec

from perfwatch.jobs.discovery import ListedJob, ListedVerdict, Listing
from perfwatch.jobs.known import listed
from perfwatch.processes.linux import die_with_parent
from perfwatch.processes.reinvoke import own_command
from perfwatch.text import say
from perfwatch.verdict import Verdict

LOOK_SECONDS, LEAVE_SECONDS = 5.0, 5.0
MOST_AT_ONCE = 4  # each takes a quarter of a core


def judged(listing: Listing, stream: IO[str]) -> Listing:
    """The listing with a verdict for each job, as far as one can be made. A terminal ``stream`` shows that it takes a while."""
    waiting = [job for job in listing.jobs if job.kind == "job" and job.verdict is None]
    if waiting and stream.isatty():
        rounds = -(-len(waiting) // MOST_AT_ONCE)
        say(stream, f"judging {len(waiting)} jobs: about {rounds * (LOOK_SECONDS + 2):.0f} s")
    said: dict[int, ListedVerdict] = {}
    with tempfile.TemporaryDirectory(prefix="perfwatch-judge-") as place:
        for first in range(0, len(waiting), MOST_AT_ONCE):
            said.update(_verdicts(waiting[first : first + MOST_AT_ONCE], place))
    jobs = tuple(
        msgspec.structs.replace(job, verdict=said[job.pid]) if job.pid in said else job for job in listing.jobs
    )
    return msgspec.structs.replace(listing, jobs=jobs)


def _verdicts(jobs: list[ListedJob], place: str) -> dict[int, ListedVerdict]:
    ours = os.getpid()
    started = {
        job.pid: subprocess.Popen(
            [*own_command(), "attach", str(job.pid), "--json", "--without-stacks", "--session", f"{place}/{job.pid}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(ours),
        )
        for job in jobs
    }
    ends = time.monotonic() + LOOK_SECONDS
    found = {}
    for pid, process in started.items():
        try:
            answer, _ = process.communicate(timeout=max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                answer, _ = process.communicate(timeout=LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                answer, _ = process.communicate()
        try:
            found[pid] = listed(msgspec.json.decode(answer, type=Verdict), "judge")
        except (msgspec.DecodeError, ValueError):
            continue  # it ended, or may not be looked into
    return found
