"""What ``perfwatch snapshot`` does on a host: find the jobs, look at them for some seconds, say the little that others need.

The same look as ``attach``, for a time that is told beforehand: the process that asks waits for all hosts, and no host may keep the others
waiting until its own part is clear, which without the others it may never be.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from perfwatch import __version__
from perfwatch.exporters.own_cost import cpu_seconds
from perfwatch.fleet.merge.compacting import compact, numbered
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.jobs.discovery import FoundJob, find_jobs
from perfwatch.processes.control import find_place
from perfwatch.processes.linux import volunteer_for_the_oom_killer
from perfwatch.processes.stop_signals import Leaving
from perfwatch.recording.session import SNAPSHOT, Session, this_machine
from perfwatch.watching.opening import open_recorder
from perfwatch.watching.watch import Watch
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests

MOST_JOBS = 16  # of one host, looked at at once
LIMIT_SECONDS = 30  # beyond the look itself: then the kernel ends us, for no process waits any more
AFTER_FAILURE_SECONDS = 0.5


def look(seconds: float, patience_seconds: float, wanted: str, leaving: Leaving, scheduler: str = "") -> Snapshot:
    """Look at this machine's jobs for so long.

    Args:
        seconds: how long.
        patience_seconds: for temporal ends.
        wanted: part of what a job says of itself (``Identity.shown``); empty for all jobs.
        leaving: tells when to say what is known already.
        scheduler: a job of Slurm's; jobs that say that they are another one are none of ours. Empty for all.
    """
    volunteer_for_the_oom_killer()
    signal.alarm(int(seconds) + LIMIT_SECONDS)
    filesystem, child = Filesystem(), KillableChild()
    try:
        every, hidden = find_jobs(filesystem, child)
        found, unwanted = chosen(every, wanted, scheduler)
        looks = [JobLook(one, patience_seconds, child, len(one.among(hidden))) for one in found[:MOST_JOBS]]
    finally:
        child.close()
    try:
        _watch(looks, seconds, leaving)
        views = [one.view() for one in looks]
    finally:
        for one in looks:
            one.close()
    machine = this_machine()
    return Snapshot(
        version=__version__,
        host=os.environ.get("SLURMD_NODENAME") or machine.name,
        place=f"{machine.boot_id} {_namespace()}",
        made=time.time(),
        jobs=tuple(view for view in views if view is not None),
        hidden=len(hidden),
        unwanted=unwanted,
        cpu_seconds=round(cpu_seconds(), 3),
    )


def chosen(found: Iterable[FoundJob], wanted: str, scheduler: str) -> tuple[list[FoundJob], int]:
    """The jobs that were asked for, and how many others may be of the same job and say something else of themselves."""
    possible = [one for one in found if not one.identity.of_another(scheduler)]
    fitting = [one for one in possible if wanted in one.identity.shown()]
    return fitting, len(possible) - len(fitting)


class JobLook:
    """One job while it is looked at. ``watch`` makes its watch, of what ``Watch`` takes."""

    def __init__(
        self,
        found: FoundJob,
        patience_seconds: float,
        child: KillableChild,
        hidden: int,
        watch: Callable[..., Watch] = Watch,
    ) -> None:
        pids = [process.pid for process in found.tops]
        self._found = found
        self._hidden = hidden
        self._session = Session(
            version=__version__,
            created=time.time(),
            mode=SNAPSHOT,
            machine=this_machine(),
            command=found.command,
            root_pids=tuple(pids),
            conditions={"patience_seconds": patience_seconds, "world_size": found.job.world_size},
        )
        self._recorder, self._folder, _ = open_recorder(None, self._session, child)
        self._guests = Guests()
        armed = find_place(pids[0], guests=self._guests)
        self._watch = watch(
            pids,
            self._session,
            recorder=self._recorder,
            agent_folder=armed.folder if armed is not None else None,
            eager=True,
        )
        for process in found.tops:
            self._watch.look.expect(process)

    def tick(self) -> float:
        """One round of looks; what fails in one must not end the others."""
        try:
            return self._watch.tick()
        except Exception as error:
            self._failed(error)
            return AFTER_FAILURE_SECONDS

    def view(self) -> JobView | None:
        """What others need; None of a job of which nothing is left to tell, or that cannot be told: others still are."""
        try:
            return self._seen()
        except Exception as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        if self._recorder is not None:
            self._recorder.event(self._watch.at, "note", f"internal error: {type(error).__name__}: {error}")

    def _seen(self) -> JobView | None:
        verdict = self._watch.verdict()
        if self._recorder is not None:
            self._recorder.event(self._watch.judged_at, "verdict", verdict.summary, verdict)
        case = self._watch.case()
        if not case.job.members:
            return None
        records, left_out = compact(case)
        ranks = numbered(case)
        return JobView(
            identity=self._found.identity,
            session=self._session,
            end=round(case.at, 4),
            verdict=verdict,
            ranks=tuple(sorted(set(ranks.values()))),
            numbered=case.job.numbered,
            records=records,
            hidden=self._hidden,
            left_out=left_out,
            folder=str(self._folder or ""),
        )

    def close(self) -> None:
        """End our own children and the recording."""
        self._watch.close()
        self._guests.close()
        if self._recorder is not None:
            self._recorder.close()


def _watch(looks: list[JobLook], seconds: float, leaving: Leaving, clock: Callable[[], float] = time.monotonic) -> None:
    ends = clock() + seconds
    due = dict.fromkeys(looks, clock())
    while due and clock() < ends and not leaving.wait(max(0.0, min(ends, *due.values()) - clock())):
        for one, at in due.items():
            if clock() >= at:
                due[one] = clock() + one.tick()


def _namespace() -> str:
    with suppress(OSError):
        return Path("/proc/self/ns/pid").readlink().name
    return ""
