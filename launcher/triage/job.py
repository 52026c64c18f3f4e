"""Who is who in the job: ranks, DataLoader workers, launchers, children, told from the readings alone.

A DataLoader worker inherits its rank's environment, so ``RANK`` alone does not make a rank: the outermost process with a
given RANK does. Ranks that set their variables themselves (plain spawn) are found by what their parent waits for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.frames import any_tag, is_user, tags
from perfwatch.triage.history import History

WORKER_THREAD = "pt_data_worker"  # the name that torch gives a DataLoader worker's main thread
TRAINING = ("optimizer", "backward", "loader", "forward")
OUR_NAME = "perfwatch"  # launchers, watchers and writers of ours name themselves so: never part of what they watch
SERVICE_WORDS = ("resource_tracker", "forkserver", "semaphore_tracker")
# How torch and its backends name the threads of a process group (gloo's loop, NCCL's watchdog, heartbeat and proxy).
GROUP_THREADS = ("gloo", "pt_nccl", "NCCL", "nccl", "pt_gloo")
TICKS_PER_SECOND = 100  # USER_HZ, fixed by the kernel's ABI on every Linux that torch runs on
COMPILE_WORDS = ("compile_worker", "_inductor")


@dataclass(frozen=True)
class Member:
    """One process of the job and its part in it."""

    process: r.Process
    role: str  # rank worker pool_worker launcher child compile service
    rank: int | None = None  # of the rank itself, or of the rank that it belongs to
    rank_pid: int | None = None  # the rank's process
    ended: r.ProcessEnded | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still exists (a zombie does not count)."""
        return self.ended is None


@dataclass(frozen=True)
class Job:
    """All members, and the ranks among them in rank order."""

    members: dict[int, Member]
    ranks: tuple[Member, ...]
    world_size: int | None

    def children(self, pid: int) -> list[Member]:
        """Direct children, the dead ones included."""
        return [member for member in self.members.values() if member.process.parent_pid == pid]

    def branch(self, pid: int, root: int) -> Member | None:
        """The child of ``root`` that a process is, or descends from."""
        here = self.members.get(pid)
        while here is not None and here.process.parent_pid != root:
            here = self.members.get(here.process.parent_pid)
        return here

    def of_multiprocessing(self, member: Member) -> bool:
        """Whether a process was made by ``multiprocessing``: a fork of a Python parent, or its spawn or fork server."""
        parent = self.members.get(member.process.parent_pid)
        made = any("multiprocessing" in part for part in member.process.command)
        forked = parent is not None and parent.process.command == member.process.command
        return member.process.python and (made or forked)

    def workers(self, rank_pid: int) -> list[Member]:
        """DataLoader workers of a rank, the dead ones included."""
        return [m for m in self.members.values() if m.role == "worker" and m.rank_pid == rank_pid]

    def rank_of(self, pid: int) -> int | None:
        """The rank that a process is or belongs to."""
        member = self.members.get(pid)
        return member.rank if member else None

    @property
    def covered(self) -> bool:
        """Whether every rank that the job says it has is seen."""
        return self.world_size is None or len(self.ranks) >= self.world_size


class _Sights:
    """What is known of every process, gathered in one pass: a job can have thousands of threads."""

    def __init__(self, history: History) -> None:
        self.all: dict[int, set[str]] = {}  # tags of all its threads' newest stacks
        self.main: dict[int, r.Stack] = {}
        self.in_group: set[int] = (
            set()
        )  # belongs to a process group, by its stacks or by a thread that torch made for one
        for pid, tid in history.entities(r.Stack):
            seen = history.latest(r.Stack, pid, tid)
            if seen is None:
                continue
            self.all.setdefault(pid, set()).update(tags(seen.reading))
            if pid == tid:
                self.main[pid] = seen.reading
        for pid, tid in history.entities(r.Thread):
            thread = history.latest(r.Thread, pid, tid)
            if thread is not None and thread.reading.name.startswith(GROUP_THREADS):
                self.in_group.add(pid)
        self.in_group |= {pid for pid, found in self.all.items() if any_tag(found, "collective", "rendezvous")}

    def of(self, pid: int) -> frozenset[str]:
        """Tags of all threads of a process."""
        return frozenset(self.all.get(pid, ()))

    def of_main(self, pid: int) -> frozenset[str]:
        """Tags of its main thread."""
        return tags(self.main[pid]) if pid in self.main else frozenset()


def read_job(history: History) -> Job:
    """Assign every process its part."""
    processes = {
        seen.reading.pid: seen.reading
        for key in history.entities(r.Process)
        if (seen := history.latest(r.Process, *key))
    }
    ended = {
        gone.reading.pid: gone.reading
        for key in history.entities(r.ProcessEnded)
        if (gone := history.latest(r.ProcessEnded, *key))
        and (gone.reading.pid not in processes or processes[gone.reading.pid].start_ticks == gone.reading.start_ticks)
    }
    sights = _Sights(history)
    ranks = _find_ranks(sights, processes)
    members: dict[int, Member] = {}
    for pid, process in sorted(processes.items()):
        owner = _owner(pid, processes, ranks)
        members[pid] = Member(
            process=process,
            role=_role(sights, process, ranks, owner, processes),
            rank=ranks[owner] if owner is not None else None,
            rank_pid=owner,
            ended=ended.get(pid),
        )
    ordered = tuple(sorted((members[pid] for pid in ranks), key=lambda m: (m.rank if m.rank is not None else 0, m.pid)))
    sizes = [processes[pid].world_size for pid in ranks if processes[pid].world_size is not None]
    return Job(members, _newest(ordered), max((size for size in sizes if size is not None), default=None))


def _newest(ranks: tuple[Member, ...]) -> tuple[Member, ...]:
    """Of several processes with one rank (an elastic restart), the one that lives, or else the youngest."""
    best: dict[int | None, Member] = {}
    for member in ranks:
        if member.rank is None:
            best[-member.pid] = member
            continue
        other = best.get(member.rank)
        if other is None or (member.alive, member.process.start_ticks) > (other.alive, other.process.start_ticks):
            best[member.rank] = member
    return tuple(best.values())


def _find_ranks(sights: _Sights, processes: dict[int, r.Process]) -> dict[int, int | None]:
    by_environment = {
        pid: process.rank
        for pid, process in processes.items()
        if process.python and process.rank is not None and not _inherits(process, processes)
    }
    if by_environment:
        return dict(by_environment)
    roots = [p for p in processes.values() if p.python and not _is_service(p) and not _python_above(p, processes)]
    found: dict[int, int | None] = {}
    for root in sorted(roots, key=lambda p: p.start_ticks):
        found.update(_descend(sights, root, processes))
    return found


def _descend(sights: _Sights, process: r.Process, processes: dict[int, r.Process]) -> dict[int, int | None]:
    """The rank(s) at or below a top Python process: past launchers, and into the children of a plain spawn."""
    children = [
        p
        for p in processes.values()
        if p.parent_pid == process.pid and p.python and not _is_service(p) and not _is_worker(sights, p)
    ]
    grouped = [child for child in children if child.pid in sights.in_group]
    supervises = any_tag(sights.of_main(process.pid), "spawn_join", "mp_join") or process.pid not in sights.in_group
    if "spawn_join" in sights.of_main(process.pid) or (grouped and supervises):
        likely = [child for child in children if child.torch_loaded is not False or child in grouped]
        ordered = sorted(likely, key=lambda p: (p.start_ticks, p.pid))
        return {child.pid: index for index, child in enumerate(ordered)}
    if grouped:  # it trains as the first rank itself
        ordered = sorted(grouped, key=lambda p: (p.start_ticks, p.pid))
        return {one.pid: index for index, one in enumerate([process, *ordered])}
    heavy = [child for child in children if child.torch_loaded]
    trains = len(heavy) == 1 and any_tag(sights.of(heavy[0].pid), *TRAINING)
    joins = trains and "mp_join" in sights.of_main(process.pid)
    if len(heavy) == 1 and (process.torch_loaded is False or joins or _only_launches(sights, process.pid)):
        return _descend(sights, heavy[0], processes)
    return {process.pid: None}


def _only_launches(sights: _Sights, pid: int) -> bool:
    """Whether the main thread waits for a child below nothing but an installed command (accelerate, deepspeed)."""
    stack = sights.main.get(pid)
    if stack is None or not any_tag(tags(stack), "child_wait", "mp_join"):
        return False
    return all(not is_user(frame) or "/bin/" in frame.file for frame in stack.frames)


def _inherits(process: r.Process, processes: dict[int, r.Process]) -> bool:
    """Whether an ancestor in the job has the same RANK, so that this one only inherited it."""
    above = processes.get(process.parent_pid)
    while above is not None:
        if above.rank == process.rank and above.python:
            return True
        above = processes.get(above.parent_pid)
    return False


def _python_above(process: r.Process, processes: dict[int, r.Process]) -> bool:
    above = processes.get(process.parent_pid)
    while above is not None:
        if above.python and not _is_service(above):
            return True
        above = processes.get(above.parent_pid)
    return False


def _owner(pid: int, processes: dict[int, r.Process], ranks: dict[int, int | None]) -> int | None:
    here: int | None = pid
    while here is not None and here in processes:
        if here in ranks:
            return here
        here = processes[here].parent_pid
    return None


def _is_service(process: r.Process) -> bool:
    if process.name.startswith(OUR_NAME):
        return True
    return any(word in part for part in process.command for word in SERVICE_WORDS)


def _is_worker(sights: _Sights, process: r.Process) -> bool:
    return process.name.startswith(WORKER_THREAD) or "worker" in sights.of(process.pid)


def _role(
    sights: _Sights,
    process: r.Process,
    ranks: dict[int, int | None],
    owner: int | None,
    processes: dict[int, r.Process],
) -> str:
    if process.pid in ranks:
        return "rank"
    if _is_service(process):
        return "service"
    if any(word in part for part in process.command for word in COMPILE_WORDS):
        return "compile"
    if owner is None:
        return "launcher"
    if _is_worker(sights, process):
        return "worker"
    if any_tag(sights.of(process.pid), "pool_worker", "futures_worker"):
        return "pool_worker"
    return "child"


def youngest_start_gap_seconds(members: Iterable[Member]) -> float:
    """How much younger the youngest of some processes is than the oldest (a replaced pool worker stands out)."""
    starts = [m.process.start_ticks for m in members]
    return (max(starts) - min(starts)) / TICKS_PER_SECOND if len(starts) >= 2 else 0.0
