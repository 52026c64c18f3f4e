"""A quick verdict on each job of a listing without a watcher: one ``attach`` for each, told to say what it knows after 5 s.

All of a round are told at the same time, so that a busy machine costs each the same. The most silent jobs are in the first round.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from perfwatch.jobs.discovery import ListedJob, ListedVerdict, Listing
from perfwatch.jobs.known import listed
from perfwatch.processes.linux import die_with_parent
from perfwatch.processes.reinvoke import own_command
from perfwatch.report.jobs import silent_seconds
from perfwatch.text import say
from perfwatch.verdict import Verdict

LOOK_SECONDS = 5.0
BEGIN_SECONDS, BEGIN_TURN_SECONDS = 20.0, 0.1  # before that: an attach on an idle machine takes half a second
LEAVE_SECONDS = 20.0  # for all of a round: on a busy machine a verdict takes its time
MOST_AT_ONCE = 4  # each takes a quarter of a core


def judged(listing: Listing, stream: IO[str]) -> Listing:
    """The listing with a verdict for each job, as far as one can be made. A terminal ``stream`` shows that it takes a while."""
    waiting = [job for job in listing.jobs if job.kind == "job" and job.verdict is None]
    waiting.sort(key=lambda job: silent_seconds(job) or 0.0, reverse=True)
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
    started = {}
    for job in jobs:
        words = ("attach", str(job.pid), "--json", "--json-version", "1", "--without-stacks")
        with open(_answer(place, job.pid), "wb") as answer:
            started[job.pid] = subprocess.Popen(
                [*own_command(), *words, "--session", f"{place}/{job.pid}"],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: die_with_parent(ours),
            )
    _begun(started, place)
    _wait(started.values(), LOOK_SECONDS)
    for process in started.values():
        process.send_signal(signal.SIGINT)  # one that has ended gets none
    _wait(started.values(), LEAVE_SECONDS)
    found = {}
    for pid, process in started.items():
        process.kill()
        process.wait()
        try:
            with open(_answer(place, pid), "rb") as answer:
                found[pid] = listed(msgspec.json.decode(answer.read(), type=Verdict), "judge")
        except (msgspec.DecodeError, ValueError):
            continue  # it ended, or may not be looked into
    return found


def _answer(place: str, pid: int) -> str:
    return f"{place}/{pid}.json"


def _begun(started: Mapping[int, "subprocess.Popen[bytes]"], place: str) -> None:
    """Until each has ended or sampled its job, so long at most: on a busy machine that takes longer than the samples do."""
    ends = time.monotonic() + BEGIN_SECONDS
    waited = set(started)
    while waited and time.monotonic() < ends:
        time.sleep(BEGIN_TURN_SECONDS)
        begun = {pid for pid in waited if any(one.stat().st_size for one in Path(f"{place}/{pid}").glob("readings*"))}
        waited -= begun | {pid for pid in waited if started[pid].poll() is not None}


def _wait(processes: Iterable["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Until all have ended, so long at most."""
    ends = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, ends - time.monotonic()))
