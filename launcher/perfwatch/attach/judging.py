"""A quick verdict on each job of a listing without a watcher: an ``attach`` to each, asked for what it knows after 5 s.

A few are at work at a time, the next one begins as soon as one has ended, and the most silent jobs come first. All together are
bounded: on a busy machine the last ones say what they know by then, and those that have not begun stay without a verdict.
"""

import math
import os
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import IO

import msgspec

from perfwatch.errors import PerfwatchError
from perfwatch.jobs.discovery import ListedJob, ListedVerdict, Listing
from perfwatch.jobs.known import listed
from perfwatch.processes.linux import die_with_parent
from perfwatch.processes.stop_signals import Leaving
from perfwatch.report.jobs import silent_seconds
from perfwatch.text import duration
from perfwatch.verdict import Verdict
from perfwatch.watching.status_line import StatusLine

LOOK_SECONDS = 5.0
TURN_SECONDS = 0.1
LEAVE_SECONDS = 10.0  # from its signal to its verdict: on a busy machine that takes its time
MOST_SECONDS = 30.0  # until the last ones are told to say what they know
MOST_AT_ONCE = 4  # each takes a quarter of a core


def judged(listing: Listing, stream: IO[str]) -> Listing:
    """The listing with a verdict for each job, as far as one can be made; ``stream`` shows how far it is."""
    waiting = [
        job.pid for job in sorted(listing.jobs, key=lambda job: -(silent_seconds(job) or 0.0)) if _is_unjudged(job)
    ]
    with tempfile.TemporaryDirectory(prefix="perfwatch-judge-") as place, StatusLine(stream) as status:
        said = _verdicts(waiting, Path(place), status) if waiting else {}
    jobs = tuple(
        msgspec.structs.replace(job, verdict=said[job.pid]) if job.pid in said else job for job in listing.jobs
    )
    return msgspec.structs.replace(listing, jobs=jobs)


def _is_unjudged(job: ListedJob) -> bool:
    return job.kind == "job" and job.verdict is None


class _Look:
    """An ``attach`` to one job, in a fork of ours: what it needs is loaded once for all."""

    def __init__(self, pid: int, place: Path) -> None:
        self._answer, self._session = place / f"{pid}.json", place / str(pid)
        self._tell_at, self._kill_at = math.inf, math.inf
        arguments = (pid, self._answer, self._session, os.getpid())
        self._process = get_context("fork").Process(target=_attach, args=arguments)
        self._process.start()

    def turn(self, now: float, last: float) -> bool:
        """Ask for the verdict when it is time, ``last`` at the latest; True once it has ended, or was late."""
        if self._tell_at == math.inf and any(one.stat().st_size for one in self._session.glob("readings*")):
            self._tell_at = now + LOOK_SECONDS  # not earlier: on a busy machine it takes longer to begin than to look
        if self._kill_at == math.inf and now >= min(self._tell_at, last):
            self._kill_at = now + LEAVE_SECONDS
            os.kill(self._process.pid or 0, signal.SIGINT)  # not reaped yet: its PID cannot have been reused
        if now >= self._kill_at:
            self.end()
        return not self._process.is_alive()

    def end(self) -> None:
        """At once."""
        self._process.kill()
        self._process.join()

    def verdict(self) -> ListedVerdict | None:
        """What it said; None of a job that has ended, or may not be looked into."""
        try:
            return listed(msgspec.json.decode(self._answer.read_bytes(), type=Verdict), "judge")
        except (OSError, ValueError):
            return None


def _attach(pid: int, answer: Path, session: Path, parent: int) -> None:
    """Runs in the fork: watch a job until its verdict is clear or asked for, and write it. What goes wrong leaves none."""
    from perfwatch.attach.attached import Attached

    die_with_parent(parent)
    with (
        open(os.devnull, "w") as nothing,
        suppress(PerfwatchError, OSError, KeyboardInterrupt),  # it may be told to leave before it has begun
        Leaving() as leaving,
    ):
        os.dup2(nothing.fileno(), 2)
        attached = Attached(pid, leaving, session=str(session))
        try:
            answer.write_bytes(msgspec.json.encode(attached.decide(nothing, StatusLine(nothing))))
        finally:
            attached.close()


def _verdicts(pids: list[int], place: Path, status: StatusLine) -> dict[int, ListedVerdict]:
    """The verdicts on these jobs."""
    seconds = MOST_SECONDS
    began, waiting, looks = time.monotonic(), list(pids), dict[int, _Look]()
    found: dict[int, ListedVerdict] = {}
    count = f"{len(pids)} job{'' if len(pids) == 1 else 's'}"
    most = duration(seconds + LEAVE_SECONDS)
    status.begin(f"judging {count}: {duration(LOOK_SECONDS)} of samples each, at most {most}")
    import perfwatch.attach.attached  # noqa: F401  # before the forks

    try:
        while looks or (waiting and time.monotonic() < began + seconds):
            while waiting and len(looks) < MOST_AT_ONCE and time.monotonic() < began + seconds:
                pid = waiting.pop(0)
                looks[pid] = _Look(pid, place)
            for pid in [pid for pid, look in looks.items() if look.turn(time.monotonic(), began + seconds)]:
                if (verdict := looks.pop(pid).verdict()) is not None:
                    found[pid] = verdict
            done = len(pids) - len(waiting) - len(looks)
            status.now(f"judged {done} of {count} in {duration(time.monotonic() - began)}")
            time.sleep(TURN_SECONDS)
    finally:
        for look in looks.values():
            look.end()
    return found
