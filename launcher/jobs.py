"""The training jobs of this machine, for nobody knows the pid at three in the morning.

A job is what hangs together below the topmost process that has torch loaded (or that is a launcher of such). Who is a
rank and who a worker is told by the same rules as in a diagnosis; when each main thread last ran, by the kernel's
memory.
"""

from dataclasses import dataclass

import msgspec

from perfwatch.probes.cpu_clock import CpuClocks
from perfwatch.probes.deadline import Caller
from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.process import identify, read_stat
from perfwatch.probes.readings import Process
from perfwatch.probes.thread import one_thread
from perfwatch.recording import Record
from perfwatch.redaction import redact
from perfwatch.target import LAUNCHERS
from perfwatch.triage.history import History
from perfwatch.triage.job import Job, Member, read_job

SCHEMA = "perfwatch.ps/1"


class ListedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job. ``ran_ago_seconds`` is about its main thread; None where the kernel does not say."""

    pid: int
    role: str
    rank: int | None
    state: str | None = None  # R running, S sleeping, D uninterruptible, T stopped, Z zombie
    ran_ago_seconds: float | None = None


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job; ``pid`` is its root, the one to attach to. ``world_size`` may count ranks on other machines."""

    pid: int
    command: tuple[str, ...]
    uid: int | None
    age_seconds: float | None
    world_size: int | None
    ranks: tuple[ListedProcess, ...]
    workers: tuple[ListedProcess, ...]


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What ``perfwatch ps --json`` prints. ``hidden``: Python processes that we may not look into."""

    schema: str = SCHEMA
    jobs: tuple[ListedJob, ...]
    hidden: int


@dataclass(frozen=True)
class _Machine:
    """Every user process, by pid."""

    processes: dict[int, Process]

    def top(self, process: Process) -> int:
        """The pid of the job that a process belongs to."""
        above = self.processes.get(process.parent_pid)
        while above and (above.name in LAUNCHERS or (above.python and above.torch_loaded)):
            process, above = above, self.processes.get(above.parent_pid)
        return process.pid

    def below(self, top: int) -> list[Process]:
        """A process and its descendants."""
        found = {top}
        for pid in sorted(self.processes, key=lambda pid: self.processes[pid].start_ticks):  # parents start first
            if self.processes[pid].parent_pid in found:
                found.add(pid)
        return [self.processes[pid] for pid in sorted(found)]


def list_jobs(filesystem: Filesystem, child: Caller, clocks: CpuClocks | None = None) -> Listing:
    """Every job of this machine, oldest first.

    Args:
        filesystem: where /proc is.
        child: where reads that may block are made.
        clocks: makes ``ran_ago_seconds`` known.
    """
    machine = _Machine(_user_processes(filesystem, child))
    tops = {machine.top(process) for process in machine.processes.values() if process.python and process.torch_loaded}
    jobs = []
    for top in sorted(tops, key=lambda pid: machine.processes[pid].start_ticks):
        root = machine.processes[top]
        job = read_job(History((Record(0.0, 0.0, process) for process in machine.below(top)), 0.0))
        jobs.append(
            ListedJob(
                pid=top,
                command=root.command,
                uid=root.uid,
                age_seconds=root.age_seconds,
                world_size=job.world_size,
                ranks=tuple(_listed(filesystem, member, child, clocks) for member in job.ranks),
                workers=tuple(_listed(filesystem, member, child, clocks) for member in _workers(job)),
            )
        )
    # A zombie has no memory map either, but no command line any more.
    hidden = sum(one.python and one.torch_loaded is None and bool(one.command) for one in machine.processes.values())
    return Listing(jobs=tuple(jobs), hidden=hidden)


def _workers(job: Job) -> list[Member]:
    return [member for member in job.members.values() if member.role in ("worker", "pool_worker")]


def _user_processes(filesystem: Filesystem, child: Caller) -> dict[int, Process]:
    """Everything but kernel threads, which have no command line, no memory map and no part in any job."""
    found = {}
    kernel_parent = 0
    for pid in filesystem.processes():
        try:
            stat = read_stat(filesystem, pid)
            if pid == 2 and stat.name == "kthreadd":
                kernel_parent = pid
            if not kernel_parent or kernel_parent not in (pid, stat.parent_pid):
                found[pid] = identify(filesystem, pid, child, redact)
        except Unavailable:
            continue
    return found


def _listed(filesystem: Filesystem, member: Member, child: Caller, clocks: CpuClocks | None) -> ListedProcess:
    try:
        thread = one_thread(filesystem, member.pid, member.pid, child, clocks)
    except Unavailable:
        return ListedProcess(pid=member.pid, role=member.role, rank=member.rank)
    return ListedProcess(
        pid=member.pid, role=member.role, rank=member.rank, state=thread.state, ran_ago_seconds=thread.ran_ago_seconds
    )
