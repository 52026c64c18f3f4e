"""Find the training jobs of this machine.

A job is the process tree below the topmost process that has torch loaded, or below a launcher of such processes. The rules that
tell ranks from workers are those of a diagnosis. The kernel's scheduler statistics say when each main thread last ran.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from perfwatch.errors import NotATrainingJob, UsageError
from perfwatch.jobs.connected_ranks import circles
from perfwatch.jobs.identity import Identity, identity_of
from perfwatch.jobs.target import LAUNCHERS, WORKER_NAME, Target, root_of, starter
from perfwatch.recording.recording import Record
from perfwatch.recording.redaction import redact_command
from perfwatch.triage.history import History
from perfwatch.triage.job import Job, Member, adopted, program_of, read_job
from perfwatch_probes.cpu_clock import CpuClocks
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu_files import device_files
from perfwatch_probes.lineage import lineage
from perfwatch_probes.locked_files import user_of
from perfwatch_probes.private import optional
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import children_of, identify, read_stat, scan, tree, usage
from perfwatch_probes.readings import Process, Stack
from perfwatch_probes.thread import one_thread, threads

SCHEMA = "perfwatch.ps/2"  # 1: without user, cards, steps, verdicts, orphans and zombies
MOST_NAMED = 8  # of the jobs below one shell
WORST_FIRST = ("hung", "gone", "slow", "inconclusive", "busy", "healthy")  # states of verdicts, as lists order them
# An interactive session, not a run: it waits for its user most of the time.
_INTERACTIVE = re.compile(r"(?:^|/)(?:ipykernel(?:_launcher)?|jupyter[\w-]*|ipython3?|pytest)(?:\.py)?$")
_TRAINER_NAME = re.compile(r"(?:python|pypy)[\d.]*|pt_\w+")  # of what every user may read of a process that has ended
# What processes that do not answer may cost one pass: those of one user, and those of all before the deadline becomes a short one. An
# answer takes 1 ms.
MOST_LOST_SECONDS, LOST_SECONDS, HASTY_SECONDS = 3.0, 2.0, 0.05

T = TypeVar("T")


class ListedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job. ``ran_ago_seconds`` is about its main thread; None where the kernel does not say."""

    pid: int
    role: str
    rank: int | None
    state: str | None = None  # R running, S sleeping, D uninterruptible, T stopped, Z zombie
    ran_ago_seconds: float | None = None


class ListedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job.

    Attributes:
        suspect: the state and cause that an inconclusive verdict leans to; ``suspect_in_seconds``: when it will be sure, if nothing moves.
        summary: the whole sentence: which process, at which line.
        by: who says it: ``run``, ``daemon``, ``attach``, or ``judge`` where it was asked for now.
    """

    state: str
    cause: str | None = None
    confidence: str = "none"
    suspect: tuple[str, str] | None = None
    suspect_in_seconds: float | None = None
    summary: str = ""
    silent_seconds: float | None = None
    last_step: int | None = None
    by: str = ""


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job; ``pid`` is its root, the one to attach to. ``world_size`` may count ranks on other machines.

    Attributes:
        gpus: numbers N of the /dev/nvidiaN that its processes hold open.
        step: of the rank that is furthest behind, where steps are counted.
        watched_by: how its watcher calls itself; None where it has none of ours.
        memory_bytes: of an orphan, what it holds of the machine's memory.
        shared_bytes: the part of it that is shared memory.
        working_directory: of its top; None where that may not be read.
    """

    pid: int
    kind: str = "job"  # or "orphan": a DataLoader worker whose training process has ended
    command: tuple[str, ...]
    uid: int | None
    age_seconds: float | None
    world_size: int | None
    ranks: tuple[ListedProcess, ...]
    workers: tuple[ListedProcess, ...]
    gpus: tuple[int, ...] = ()
    step: int | None = None
    verdict: ListedVerdict | None = None
    watched_by: str | None = None
    memory_bytes: int | None = None
    shared_bytes: int | None = None
    working_directory: str | None = None


class Zombie(msgspec.Struct, frozen=True, kw_only=True):
    """A Python process that has ended, and that its parent has not reaped."""

    pid: int
    name: str
    uid: int | None
    parent_pid: int
    parent: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What ``perfwatch ps --json`` prints. ``hidden``: Python processes that we may not look into."""

    schema: str = SCHEMA
    jobs: tuple[ListedJob, ...]
    zombies: tuple[Zombie, ...] = ()
    hidden: int


@dataclass(frozen=True)
class Machine:
    """Every user process, by pid."""

    processes: dict[int, Process]
    _tops: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def top(self, process: Process) -> int:
        """The pid of the job that a process belongs to."""
        passed, top = [], process.pid
        for one in lineage(process, self._parent):
            passed.append(one.pid)
            top = self._tops.get(one.pid, one.pid)
            if one.pid in self._tops:
                break
        self._tops.update(dict.fromkeys(passed, top))
        return top

    def _parent(self, process: Process) -> Process | None:
        """The parent, where it is of the same job."""
        above = self.processes.get(process.parent_pid)
        return above if above and (above.name in LAUNCHERS or (above.python and above.torch_loaded)) else None

    def below(self, top: int, tops: Collection[int]) -> list[Process]:
        """A process and its descendants, but for those that are the top of another job (a sweep that starts trainings)."""
        found = {top}
        for pid in sorted(self.processes, key=lambda pid: self.processes[pid].start_ticks):  # parents start first
            if self.processes[pid].parent_pid in found and pid not in tops:
                found.add(pid)
        return [self.processes[pid] for pid in sorted(found)]


@dataclass(frozen=True)
class Known:
    """What others know of a job: the step of its slowest rank, a verdict, and who watches it."""

    step: int | None = None
    verdict: ListedVerdict | None = None
    watched_by: str | None = None


class Patience:
    """How long one pass over the machine waits for processes that do not answer.

    A deadline for each of them would let any user hold up what is asked about another's job, for as long as there are processes.

    Args:
        child: where the reads are made.
        clock: monotonic seconds.
    """

    def __init__(self, child: Caller, clock: Callable[[], float] = time.monotonic) -> None:
        self._child, self._clock = child, clock
        self._lost: dict[int, float] = {}

    def with_user_of(self, pid: int) -> Caller:
        """Makes the reads of a process: what its user's processes have lost is lost for this one too."""
        return _Patient(self, user_of(pid))

    def call(self, uid: int, function: Callable[..., T], arguments: tuple[object, ...], deadline_seconds: float) -> T:
        """The function's result. Raises Unavailable, at once where the user's time is used up."""
        lost = self._lost.get(uid, 0.0)
        if lost >= MOST_LOST_SECONDS:
            raise Unavailable(f"processes of uid {uid} do not answer")
        if sum(self._lost.values()) >= LOST_SECONDS:
            deadline_seconds = min(deadline_seconds, HASTY_SECONDS)
        began = self._clock()
        try:
            return self._child.call(function, *arguments, deadline_seconds=deadline_seconds)
        except Unavailable:
            self._lost[uid] = lost + self._clock() - began
            raise


@dataclass(frozen=True)
class _Patient:
    patience: Patience
    uid: int

    def call(self, function: Callable[..., T], *arguments: object, deadline_seconds: float) -> T:
        return self.patience.call(self.uid, function, arguments, deadline_seconds)


@dataclass(frozen=True)
class FoundJob:
    """A job of this machine: the process(es) at its top, oldest first, and who is who below them.

    More than one top: ranks that were started one by one (by hand, by a launcher of another machine).
    orphan: True for a DataLoader worker whose training process has ended.
    """

    tops: tuple[Process, ...]
    job: Job
    orphan: bool = False

    @property
    def identity(self) -> Identity:
        """What tells it from other jobs, here and on other machines."""
        return identity_of(self.job)

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of its top, or of its first rank where the top is mpirun or a shell."""
        top = self.tops[0]
        return top.command if top.python or not self.job.ranks else self.job.ranks[0].process.command

    def among(self, hidden: Iterable[Process]) -> tuple[Process, ...]:
        """Those of the processes that we may not look into that run this job's program: they may be ranks of it."""
        programs = {program_of(rank.process.command) for rank in self.job.ranks}
        return tuple(process for process in hidden if program_of(process.command) in programs)


def find_jobs(filesystem: Filesystem, child: Caller) -> tuple[list[FoundJob], list[Process]]:
    """Every job of this machine, oldest first, and the Python processes that we may not look into."""
    return _found(Machine(_user_processes(filesystem, child)), filesystem, child)


def is_orphan(process: Process, parent: Process | None) -> bool:
    """True if a DataLoader worker at the top of a job was left to init, or to another program that cannot have started it.

    A parent that may be a training is none of these: one that is Python, and one that does not answer.

    Args:
        process: at the top of a job.
        parent: None where it is not seen.
    """
    if not process.name.startswith(WORKER_NAME):
        return False
    if parent is None:
        return process.parent_pid == 1
    return bool(parent.command) and (not parent.python or (parent.pid == 1 and parent.torch_loaded is False))


def is_notebook(process: Process) -> bool:
    """True if a process is an interactive session."""
    return any(_INTERACTIVE.search(word) for word in process.command[:3])


def _found(machine: Machine, filesystem: Filesystem, child: Caller) -> tuple[list[FoundJob], list[Process]]:
    tops = {machine.top(process) for process in machine.processes.values() if process.python and process.torch_loaded}
    found: list[FoundJob] = []
    for top in sorted(tops, key=lambda pid: machine.processes[pid].start_ticks):
        process = machine.processes[top]
        orphan = is_orphan(process, machine.processes.get(process.parent_pid))
        one = FoundJob((process,), _job(filesystem, machine, [top], tops), orphan)
        same = next((index for index, other in enumerate(found) if _same(other, one)), None)
        if same is None:
            found.append(one)
        else:
            found[same] = _together(filesystem, machine, tops, (found[same], one))
    # A zombie has no memory map either, but no command line any more.
    hidden = [one for one in machine.processes.values() if one.python and one.torch_loaded is None and one.command]
    return _joined(filesystem, child, machine, tops, found), hidden


def _together(filesystem: Filesystem, machine: Machine, tops: Collection[int], jobs: Sequence[FoundJob]) -> FoundJob:
    processes = tuple(process for one in jobs for process in one.tops)
    return FoundJob(processes, _job(filesystem, machine, [process.pid for process in processes], tops))


def _joined(
    filesystem: Filesystem, child: Caller, machine: Machine, tops: Collection[int], found: list[FoundJob]
) -> list[FoundJob]:
    """With those as one job that nothing numbers, that one process has started to meet at one master, if any, and that talk together.

    Ranks run one program: a training and the server that it asks are two jobs.
    """
    unnumbered: dict[tuple[int | None, int, str, tuple[str, ...]], list[FoundJob]] = {}
    for one in found:
        top, program = one.tops[0], program_of(one.tops[0].command)
        if program is not None and any(rank.rank is None for rank in one.job.ranks):
            unnumbered.setdefault((top.uid, top.parent_pid, program, one.identity.key), []).append(one)
    for siblings in unnumbered.values():
        by_pid = {one.tops[0].pid: one for one in siblings}
        for circle in circles(filesystem, child, list(by_pid)) if len(siblings) > 1 else ():
            first, *others = (by_pid[pid] for pid in circle)
            if others:
                found[found.index(first)] = _together(filesystem, machine, tops, (first, *others))
                found = [one for one in found if one not in others]
    return found


def doubles(filesystem: Filesystem, one: FoundJob, other: FoundJob) -> list[tuple[int, int, int]]:
    """Ranks that two trees both have, with the pid in each, where one user started both to meet at one master.

    Two containers may have a master of one name each: only in one network it is the same.
    """
    if not (one.identity.told and one.identity.joins(other.identity) and one.tops[0].uid == other.tops[0].uid):
        return []
    network = _network(filesystem, one.tops[0])
    if network is None or network != _network(filesystem, other.tops[0]):
        return []
    there = {rank.rank: rank.pid for rank in other.job.ranks if rank.rank is not None}
    return [(rank.rank, rank.pid, there[rank.rank]) for rank in one.job.ranks if rank.rank in there]


def _network(filesystem: Filesystem, process: Process) -> str | None:
    try:
        return filesystem.readlink(f"{filesystem.proc}/{process.pid}/ns/net")
    except Unavailable:
        return None


def refuse_orphan(target: Target, filesystem: Filesystem, child: Caller) -> None:
    """Raise NotATrainingJob for a DataLoader worker whose training process has ended: nothing waits for it any more."""
    if target.gone is not None or not target.root.name.startswith(WORKER_NAME):
        return
    parent = optional(partial(identify, filesystem, target.root.parent_pid, child, redact_command))
    if not is_orphan(target.root, parent):
        return
    used = optional(partial(usage, filesystem, target.root.pid))
    held = "" if used is None else f"; it holds {used.resident_bytes / 2**30:.1f} GiB of memory"
    cards = sorted(_cards(filesystem, target.root.pid))
    held += f" and GPU {', '.join(map(str, cards))}" if cards else ""
    raise NotATrainingJob(
        f"process {target.root.pid} is an orphaned DataLoader worker: its training process has ended{held}",
        f"if nothing needs it, end it: kill {target.root.pid}",
    )


def refuse_several(filesystem: Filesystem, child: Caller, target: Target) -> None:
    """Raise UsageError where the process that was named is of no job itself, and several are below it.

    A shell, a batch script, tmux, the first process of a container: as ranks of one job they would be judged wrongly. What
    hangs together by its parents is one: a launcher and its ranks, the actors of Ray, what multiprocessing has started.
    """
    if target.root.torch_loaded:
        return
    try:
        members = set(tree(filesystem, target.root.pid))
    except Unavailable:
        return
    heads: dict[int, Process] = {}
    below: list[FoundJob] = []
    for one in find_jobs(filesystem, child)[0]:
        top = one.tops[0]
        inside = not one.orphan and any(process.pid in members for process in one.tops)
        if inside and not any(doubles(filesystem, other, one) for other in below):
            below.append(one)
            head = starter(filesystem, root_of(filesystem, top, child), child)
            heads[head.pid] = head
    if len(heads) < 2 or target.root.pid in heads:
        return
    commands = [f"perfwatch attach {head.pid}    # {' '.join(head.command)}" for head in heads.values()]
    more = [f"and {len(heads) - MOST_NAMED} more: perfwatch ps lists them"] if len(heads) > MOST_NAMED else []
    raise UsageError(
        f"{len(heads)} jobs are below process {target.asked.pid} ({target.asked.name}): say which",
        "\n".join(commands[:MOST_NAMED] + more),
    )


def who_is_who(filesystem: Filesystem, processes: Iterable[Process], stacks: Iterable[Stack] = ()) -> Job:
    """The part of each of these processes, of one job.

    Where no launcher numbers the ranks, the names of threads are read as well: torch names those of a process group, so the ranks
    that a program has started itself are told from it.

    Args:
        filesystem: where /proc is.
        processes: of one job.
        stacks: of some of them, which say more.
    """
    records = [*(Record(0.0, one) for one in processes), *(Record(0.0, one) for one in stacks)]
    job = read_job(History(records, 0.0))
    programs = [one.pid for one in job.members.values() if one.process.torch_loaded and one.role in ("rank", "child")]
    if job.numbered or len(programs) < 2:
        return job
    named = [optional(partial(threads, filesystem, pid)) or () for pid in programs]
    return read_job(History([*records, *(Record(0.0, one) for some in named for one in some)], 0.0))


def _job(filesystem: Filesystem, machine: Machine, own: list[int], tops: Collection[int]) -> Job:
    return who_is_who(filesystem, [process for top in own for process in machine.below(top, tops)])


def job_below(filesystem: Filesystem, child: Caller, tops: Sequence[int]) -> Job:
    """Who is who now in these trees, without this process of ours; nothing else of the machine is looked at."""
    found: dict[int, Process] = {}
    patience = Patience(child)
    children = children_of({pid: stat for pid, stat in scan(filesystem).items() if pid != os.getpid()})
    for top in tops:
        try:
            for pid in tree(filesystem, top, children):
                found[pid] = identify(filesystem, pid, patience.with_user_of(pid), redact_command)
        except Unavailable:
            continue
    return who_is_who(filesystem, adopted(found).values())


def _same(one: FoundJob, other: FoundJob) -> bool:
    """True if two trees are one job: one user, one master (or run, or step of a scheduler), and no rank twice.

    Where nothing is told: ranks of one program and world that one process has started; they may meet at an address of their own.
    """
    ranks = [{rank.rank for rank in found.job.ranks} for found in (one, other)]
    told = one.identity.told or other.identity.told
    joined = one.identity.joins(other.identity) if told else _one_world(one) == _one_world(other) is not None
    return (
        joined and one.tops[0].uid == other.tops[0].uid and None not in ranks[0] | ranks[1] and not ranks[0] & ranks[1]
    )


def _one_world(found: FoundJob) -> tuple[int, str, int] | None:
    """Who started a tree, the program that it runs, and of how many ranks; None where a rank need not have others beside it."""
    top, size = found.tops[0], found.identity.world_size
    program = program_of(top.command)
    return None if program is None or size is None or size < 2 else (top.parent_pid, program, size)


def list_jobs(
    filesystem: Filesystem,
    child: Caller,
    clocks: CpuClocks | None = None,
    known: Callable[[FoundJob], Known] = lambda job: Known(),
) -> Listing:
    """Every job of this machine, oldest first.

    Args:
        filesystem: where /proc is.
        child: where reads that may block are made.
        clocks: makes ``ran_ago_seconds`` known.
        known: what the watcher of a job, if it has one, and the job's own counters say.
    """
    machine = Machine(_user_processes(filesystem, child))
    found, hidden = _found(machine, filesystem, child)
    jobs = tuple(_listed_job(filesystem, one, child, clocks, known(one)) for one in found)
    mine = {pid for one in found for pid in one.job.members}
    return Listing(jobs=jobs, zombies=tuple(_zombies(filesystem, machine, mine)), hidden=len(hidden))


def _listed_job(
    filesystem: Filesystem, one: FoundJob, child: Caller, clocks: CpuClocks | None, known: Known
) -> ListedJob:
    top, job, orphan = one.tops[0], one.job, one.orphan
    used = [optional(partial(usage, filesystem, process.pid)) for process in one.tops] if orphan else []
    return ListedJob(
        pid=top.pid,
        kind="orphan" if orphan else "job",
        command=one.command,
        uid=top.uid,
        age_seconds=top.age_seconds,
        world_size=job.world_size,
        ranks=tuple(_listed(filesystem, member, child, clocks) for member in job.ranks),
        workers=tuple(_listed(filesystem, member, child, clocks) for member in _workers(job)),
        gpus=tuple(sorted({minor for pid in job.members for minor in _cards(filesystem, pid)})),
        step=known.step,
        verdict=known.verdict,
        watched_by=known.watched_by,
        memory_bytes=sum(one.resident_bytes for one in used if one is not None) if orphan else None,
        shared_bytes=sum(one.shared_bytes or 0 for one in used if one is not None) if orphan else None,
        working_directory=working_directory(filesystem, top.pid),
    )


def working_directory(filesystem: Filesystem, pid: int) -> str | None:
    """That of a process; None where it may not be read."""
    return optional(partial(filesystem.readlink, f"{filesystem.proc}/{pid}/cwd"))


def _cards(filesystem: Filesystem, pid: int) -> frozenset[int]:
    try:
        return device_files(filesystem, pid).minors
    except Unavailable:
        return frozenset()


def _zombies(filesystem: Filesystem, machine: Machine, members: Collection[int]) -> Iterator[Zombie]:
    """Python processes that have ended and are no part of a job that goes on."""
    for process in machine.processes.values():
        if process.command or process.pid in members or not _TRAINER_NAME.fullmatch(process.name):
            continue
        parent = machine.processes.get(process.parent_pid)
        if (stat := optional(partial(read_stat, filesystem, process.pid))) is not None and stat.state == "Z":
            yield Zombie(
                pid=process.pid,
                name=process.name,
                uid=process.uid,
                parent_pid=process.parent_pid,
                parent=parent.name if parent is not None else "",
            )


def _workers(job: Job) -> list[Member]:
    return [member for member in job.members.values() if member.role in ("worker", "pool_worker")]


def _user_processes(filesystem: Filesystem, child: Caller) -> dict[int, Process]:
    """Everything but kernel threads, which have no command line, no memory map and no part in any job."""
    found = {}
    kernel_parent = 0
    patience = Patience(child)
    for pid in filesystem.processes():
        try:
            stat = read_stat(filesystem, pid)
            if pid == 2 and stat.name == "kthreadd":
                kernel_parent = pid
            if not kernel_parent or kernel_parent not in (pid, stat.parent_pid):
                found[pid] = identify(filesystem, pid, patience.with_user_of(pid), redact_command)
        except Unavailable:
            continue
    return adopted(found)


def _listed(filesystem: Filesystem, member: Member, child: Caller, clocks: CpuClocks | None) -> ListedProcess:
    try:
        thread = one_thread(filesystem, member.pid, member.pid, child, clocks)
    except Unavailable:
        return ListedProcess(pid=member.pid, role=member.role, rank=member.rank)
    return ListedProcess(
        pid=member.pid, role=member.role, rank=member.rank, state=thread.state, ran_ago_seconds=thread.ran_ago_seconds
    )
