"""The part of each process in the job: rank, DataLoader worker, launcher or child, by the readings alone.

What lies below a rank belongs to it. Ranks are found

- by the numbers that a launcher gave them (``placement``): the outermost process with a number, for a DataLoader worker inherits it;
- else, as a plain spawn sets ``RANK`` inside of the process, where it cannot be seen, by what their parent waits for.

A driver that only starts trainings (a sweep, folds of a cross-validation) is no rank. Its trainings are, each by itself, as under
Ray (``ray_train``). A process that a training has started to work for it (an inference engine) is none, even in a process group.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from perfwatch.triage.history import History
from perfwatch.triage.roles.placement import Placement, launches, placement, program_of
from perfwatch.triage.roles.rank_gaps import RankGaps
from perfwatch.triage.roles.ray_train import of_ray_train, ray_ranks, untold_ranks
from perfwatch.triage.roles.sights import Sights
from perfwatch.triage.words.frames import any_tag, is_user, short_name, tags
from perfwatch.triage.words.vocabulary import SERVICES
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import count
from perfwatch_probes.lineage import lineage

TICKS_PER_SECOND = 100  # USER_HZ, fixed by the kernel's ABI on every Linux that torch runs on
COMPILE_WORDS = ("compile_worker", "_inductor")
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # generations that failed before, as torchrun says
WORKER_THREAD = "pt_data_worker"  # the name that torch gives a DataLoader worker's main thread
TRAINING = ("optimizer", "backward", "loader", "forward")
OUR_NAME = "perfwatch"  # launchers, watchers and writers of ours name themselves so: never part of what they watch
WAITS_FOR_CHILDREN = ("child_wait", "mp_join")
JOINS = ("spawn_join", *WAITS_FOR_CHILDREN)

_SERVICE = re.compile(SERVICES)
# Imported by a ``-c``, or run by ``-m``.
_OF_MULTIPROCESSING = re.compile(r"\.(?:resource_tracker|forkserver|semaphore_tracker)\b")
_SERVER = re.compile(r"\bmultiprocess(?:ing)?\.forkserver\b")

Ranks = dict[int, int | None]  # by pid; None: it has no rank number, and nothing says that it is one of a group


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
        """True if it still exists (a zombie does not count)."""
        return self.ended is None


@dataclass(frozen=True)
class Job:
    """All members, and the ranks among them in rank order."""

    members: dict[int, Member]
    ranks: tuple[Member, ...]
    world_size: int | None
    numbered: bool = True  # by a launcher; otherwise we counted them
    doubt: str = ""  # about their numbers, where it was not a launcher that gave them
    apart: bool = False  # several ranks, and nothing says that they are of one training

    @cached_property
    def _below(self) -> dict[int, list[Member]]:
        return _gathered(self.members.values(), lambda member: member.process.parent_pid)

    @cached_property
    def _workers(self) -> dict[int, list[Member]]:
        workers = [member for member in self.members.values() if member.role == "worker"]
        return _gathered(workers, lambda member: member.rank_pid or 0)

    @cached_property
    def _of_ranks(self) -> dict[int, list[Member]]:
        return _gathered(self.members.values(), lambda member: member.rank_pid or 0)

    def children(self, pid: int) -> list[Member]:
        """Direct children, the dead ones included."""
        return list(self._below.get(pid, ()))

    def descendants(self, pid: int) -> list[Member]:
        """All below a process, the dead ones included: its children first."""
        found = {member.pid: member for member in self.children(pid)}
        waiting = list(found)
        for here in waiting:
            young = {member.pid: member for member in self.children(here) if member.pid not in found}
            found |= young
            waiting += young
        return list(found.values())

    def branch(self, pid: int, root: int) -> Member | None:
        """The child of ``root`` that a process is, or descends from."""
        return next((one for one in self.lineage(pid) if one.process.parent_pid == root), None)

    def lineage(self, pid: int) -> Iterator[Member]:
        """A process and its ancestors, as far as they are of the job, nearest first."""
        return lineage(self.members.get(pid), lambda one: self.members.get(one.process.parent_pid))

    def of_multiprocessing(self, member: Member) -> bool:
        """True if a process was made by ``multiprocessing`` or ``multiprocess``: a fork of a Python parent, or a spawn or fork server."""
        parent = self.members.get(member.process.parent_pid)
        made = any("multiprocess" in part for part in member.process.command)
        forked = parent is not None and parent.process.command == member.process.command
        return member.process.python and (made or forked)

    def workers(self, rank_pid: int) -> list[Member]:
        """DataLoader workers of a rank, the dead ones included."""
        return list(self._workers.get(rank_pid, ()))

    def of_rank(self, rank_pid: int) -> list[Member]:
        """A rank and all that belongs to it, the dead ones included."""
        return list(self._of_ranks.get(rank_pid, ()))

    def rank_of(self, pid: int) -> int | None:
        """The rank that a process is or belongs to."""
        member = self.members.get(pid)
        return member.rank if member else None

    @property
    def covered(self) -> bool:
        """True if every rank that the job says it has is seen."""
        return self.world_size is None or len(self.ranks) >= self.world_size

    @property
    def absent(self) -> RankGaps:
        """The numbers of the ranks that are not seen; none where as many are, however they are numbered."""
        return self.absent_beside(())

    def absent_beside(self, others: Iterable[int]) -> RankGaps:
        """The same, without those that were seen elsewhere."""
        return RankGaps((*(rank.rank for rank in self.ranks), *others), None if self.covered else self.world_size)


def _gathered(members: Iterable[Member], key: Callable[[Member], int]) -> dict[int, list[Member]]:
    found: dict[int, list[Member]] = {}
    for member in members:
        found.setdefault(key(member), []).append(member)
    return found


def read_job(history: History) -> Job:
    """Assign every process its part."""
    processes = {
        seen.reading.pid: seen.reading
        for key in history.entities(r.Process)
        if (seen := history.latest(r.Process, *key))
    }
    for process in list(processes.values()):
        above = processes.get(process.parent_pid)
        if above is not None and above.start_ticks > process.start_ticks:  # that number was used again: it is no parent
            processes[process.pid] = msgspec.structs.replace(process, parent_pid=0)
    processes = adopted(processes)
    ended = {
        gone.reading.pid: gone.reading
        for key in history.entities(r.ProcessEnded)
        if (gone := history.latest(r.ProcessEnded, *key))
        and (gone.reading.pid not in processes or processes[gone.reading.pid].start_ticks == gone.reading.start_ticks)
    }
    sights = Sights(history, ended)
    found = find_ranks(sights, processes)
    ranks = found.ranks
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
    over = former(
        (members[pid].process for pid in ranks if not members[pid].alive),
        (members[pid].process for pid in ranks if members[pid].alive),
    )
    present = [members[pid] for pid in ranks if pid not in over]
    ordered = tuple(sorted(present, key=lambda m: (m.rank if m.rank is not None else 0, m.pid)))
    sizes = [one.process.world_size for one in present if over and one.process.world_size is not None]
    size = max(sizes, default=found.world_size)
    return Job(members, _newest(ordered), size, found.numbered, found.doubt, _apart(history, sights, ordered))


def _apart(history: History, sights: Sights, ranks: tuple[Member, ...]) -> bool:
    """True if nothing says that they train together: no number of torch's, no group (of processes, of Ray's workers), no communicator.

    A sweep starts one for each card, and srun numbers whatever it starts.
    """
    if len(ranks) < 2 or any(rank.process.rank is not None or rank.pid in sights.in_group for rank in ranks):
        return False
    if any(rank.rank is not None and of_ray_train(rank.process) for rank in ranks):
        return False
    return not history.entities(r.Communicator) and not history.entities(r.RecordedGroup)


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


def _owner(pid: int, processes: dict[int, r.Process], ranks: Ranks) -> int | None:
    family = lineage(processes.get(pid), lambda one: processes.get(one.parent_pid))
    return next((one.pid for one in family if one.pid in ranks), None)


def _role(
    sights: Sights,
    process: r.Process,
    ranks: Ranks,
    owner: int | None,
    processes: dict[int, r.Process],
) -> str:
    if process.pid in ranks:
        return "rank"
    if is_service(process):
        return "service"
    if any(word in part for part in process.command for word in COMPILE_WORDS):
        return "compile"
    if owner is None:
        return "launcher"
    if is_worker(sights, process):
        return "worker"
    if any_tag(sights.of(process.pid), "pool_worker", "futures_worker"):
        return "pool_worker"
    return "child"


def youngest_start_gap_seconds(members: Iterable[Member]) -> float:
    """How much younger the youngest of some processes is than the oldest (a replaced pool worker stands out)."""
    starts = [m.process.start_ticks for m in members]
    return (max(starts) - min(starts)) / TICKS_PER_SECOND if len(starts) >= 2 else 0.0


def adopted(processes: dict[int, r.Process]) -> dict[int, r.Process]:
    """The same, but what a forkserver has forked is as a fork of the program that asked for it: its child, with its command."""
    found = dict(processes)
    for pid, process in processes.items():
        server = processes.get(process.parent_pid)
        if server is None or server.command != process.command or not any(map(_SERVER.search, process.command)):
            continue
        program = processes.get(server.parent_pid)
        if program is not None:
            found[pid] = msgspec.structs.replace(process, parent_pid=program.pid, command=program.command)
    return found


def former(dead: Iterable[r.Process], alive: Iterable[r.Process]) -> frozenset[int]:
    """Of the ranks that have ended those whose launcher has started another generation since, by their pids."""
    newest: dict[int, r.Process] = {}
    for one in alive:
        known = newest.get(one.parent_pid)
        if one.rank is not None and (known is None or one.start_ticks > known.start_ticks):
            newest[one.parent_pid] = one
    return frozenset(
        one.pid
        for one in dead
        if one.rank is not None and (later := newest.get(one.parent_pid)) is not None and _follows(later, one)
    )


def _follows(later: r.Process, one: r.Process) -> bool:
    return later.start_ticks > one.start_ticks and (
        later.world_size != one.world_size or _restarts(later) > _restarts(one)
    )


def _restarts(process: r.Process) -> int:
    return count(process.environment.get(RESTART_COUNT)) or 0


@dataclass(frozen=True)
class Found:
    """The ranks of a job, the world size where anybody says it, and whether a launcher numbered them (or we did)."""

    ranks: Ranks
    world_size: int | None
    numbered: bool
    doubt: str = ""  # about their numbers


def find_ranks(sights: Sights, processes: dict[int, r.Process]) -> Found:
    """Who trains."""
    candidates = {
        pid: one for pid, one in processes.items() if one.python and not is_service(one) and not launches(one)
    }
    of_ray = ray_ranks(candidates, sights.for_ray, sights.ended, sights.stores)
    if of_ray:  # whatever they inherited is the number of their driver
        group = [pid for pid, rank in of_ray.items() if rank is not None]
        return Found(of_ray, None, numbered=False, doubt=untold_ranks(group, sights.stores))
    told = {pid: Placement(one.rank, one.world_size) for pid, one in candidates.items() if one.rank is not None}
    if not told:
        told = {pid: place for pid, one in candidates.items() if (place := placement(one)) is not None}
    told = {pid: place for pid, place in told.items() if not _helps(sights, pid, processes)}
    told = _passed_on(sights, told, processes)
    if told:
        return _placed(sights, told, processes)
    programs = [p for p in processes.values() if p.python and not is_service(p)]
    roots = [p for p in programs if _nearest_python(p, processes) is None]
    found: Ranks = {}
    for root in sorted(roots, key=lambda p: (p.start_ticks, p.pid)):
        found.update(_descend(sights, root, processes))
    if len(found) > 1 and set(found.values()) == {None} and not sights.in_group.isdisjoint(found):
        found = {pid: number for number, pid in enumerate(found)}  # of a custom launcher, in its order
    return Found(found, _largest(processes[pid].world_size for pid in found), numbered=False)


def _passed_on(sights: Sights, told: dict[int, Placement], processes: dict[int, r.Process]) -> dict[int, Placement]:
    """The same, but a number that only a DataLoader worker shows is that of the process which made it.

    A program that sets ``RANK`` itself cannot be seen to have it; what it spawns inherits it.
    """
    found: dict[int, Placement] = {}
    for pid, place in told.items():
        above = _nearest_python(processes[pid], processes)
        made_by = above is not None and above not in told and is_worker(sights, processes[pid])
        found.setdefault(above if made_by and above is not None else pid, place)
    return found


def _helps(sights: Sights, pid: int, processes: dict[int, r.Process]) -> bool:
    """True if a process without torch lies below one that has it and does not merely start others.

    What was numbered within the training's own process (MPI does so in ``MPI_Init``) can be seen in its children alone.
    """
    above = _nearest_python(processes[pid], processes)
    if above is None or processes[pid].torch_loaded is not False or not processes[above].torch_loaded:
        return False
    return not launches(processes[above]) and not any_tag(sights.of_main(above), *JOINS)


def _placed(sights: Sights, told: dict[int, Placement], processes: dict[int, r.Process]) -> Found:
    """The outermost process with each number; one that spawned ranks and waits for them stands for its host, not for a rank."""
    found: Ranks = {}
    sizes: list[int | None] = []
    for pid, place in told.items():
        if _inherits(pid, told, processes):
            continue
        below = list(_descend(sights, processes[pid], processes)) if "spawn_join" in sights.of_main(pid) else [pid]
        for index, one in enumerate(below):
            found[one] = place.rank * len(below) + index
        sizes.append(place.size * len(below) if place.size is not None else None)
    return Found(found, _largest(sizes), numbered=True)


def _largest(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _descend(sights: Sights, process: r.Process, processes: dict[int, r.Process]) -> dict[int, int | None]:
    """The rank(s) at or below a top Python process: past launchers, and into the children of a plain spawn."""
    children = [
        p
        for p in processes.values()
        if p.python and _nearest_python(p, processes) == process.pid and not is_service(p) and not is_worker(sights, p)
    ]
    grouped = [child for child in children if child.pid in sights.in_group]
    if _work_for(sights, process.pid, [child.pid for child in grouped]):
        grouped = []
    supervises = any_tag(sights.of_main(process.pid), "spawn_join", "mp_join") or process.pid not in sights.in_group
    if "spawn_join" in sights.of_main(process.pid) or (grouped and supervises):
        entries = {_entry(sights, child.pid) for child in grouped}
        likely = [
            child
            for child in children
            if child in grouped
            or (child.torch_loaded is not False and (not entries or _entry(sights, child.pid) in {None, *entries}))
        ]
        ordered = sorted(likely, key=lambda p: (p.start_ticks, p.pid))
        return {child.pid: index for index, child in enumerate(ordered)}
    if grouped:  # it trains as the first rank itself
        ordered = sorted(grouped, key=lambda p: (p.start_ticks, p.pid))
        return {one.pid: index for index, one in enumerate([process, *ordered])}
    started = _started(sights, process, children, processes)
    if started:
        return started
    heavy = [child for child in children if child.torch_loaded]
    trains = len(heavy) == 1 and any_tag(sights.of(heavy[0].pid), *TRAINING)
    joins = trains and "mp_join" in sights.of_main(process.pid)
    above = process.torch_loaded is False or joins or launches(process) or _only_launches(sights, process.pid)
    if len(heavy) == 1 and above:
        return _descend(sights, heavy[0], processes)
    return {process.pid: None}


def _work_for(sights: Sights, pid: int, grouped: list[int]) -> bool:
    """True if the members of process groups below one train nothing and work for it: an inference engine has a group of its own.

    Who trains without them, and in no group, needs no more to be known. One that has not trained yet may only supervise them, and
    is taken for the rank while a lone one asks for its next task: an engine of a server that stands at anything else is looked at.
    """
    if not grouped or any_tag(sights.of_main(pid), *JOINS) or any(map(sights.trains, grouped)):
        return False
    if sights.trains(pid):
        return pid not in sights.in_group or all(map(sights.has_asked, grouped))
    return len(grouped) == 1 and sights.asks(grouped[0])


def _started(sights: Sights, driver: r.Process, children: list[r.Process], processes: dict[int, r.Process]) -> Ranks:
    """The trainings below a process that makes no steps itself; none where it trains, or where that cannot be told.

    Where steps are counted below it and never in it, it need not be seen to wait.
    """
    if sights.counts(driver.pid) or sights.was_at(driver.pid, *TRAINING):
        return {}
    below = [_descend(sights, one, processes) for one in children if _trains_below(sights, one, processes)]
    waits = any_tag(sights.of_main(driver.pid), *WAITS_FOR_CHILDREN)
    if not waits and not any(sights.counts(pid) for found in below for pid in found):
        return {}
    if len(below) > 1 and any(number is not None for found in below for number in found.values()):
        return {}  # several groups: their numbers would be taken for those of one
    return {pid: number for found in below for pid, number in found.items()}


def _trains_below(sights: Sights, process: r.Process, processes: dict[int, r.Process]) -> bool:
    if sights.trains(process.pid):
        return True
    below = [one for one in processes.values() if one.python and _nearest_python(one, processes) == process.pid]
    return any(_trains_below(sights, one, processes) for one in below)


def _entry(sights: Sights, pid: int) -> tuple[str, str] | None:
    """The function that a process of ``multiprocessing`` was made to run: ranks share it, a server beside them has its own."""
    stack = sights.main.get(pid)
    inside: list[r.Frame] = []
    for frame in stack.frames if stack is not None else ():
        if short_name(frame.function) == "_bootstrap":
            return next(((one.file, one.function) for one in reversed(inside) if is_user(one)), None)
        inside.append(frame)
    return None


def _only_launches(sights: Sights, pid: int) -> bool:
    """True if the main thread waits for a child below nothing but an installed command (accelerate, deepspeed)."""
    stack = sights.main.get(pid)
    if stack is None or not any_tag(tags(stack), "child_wait", "mp_join"):
        return False
    return all(not is_user(frame) or "/bin/" in frame.file for frame in stack.frames)


def _inherits(pid: int, told: dict[int, Placement], processes: dict[int, r.Process]) -> bool:
    """True if an ancestor in the job has the same number, so that this one only inherited it."""
    return any(one.pid in told and told[one.pid].rank == told[pid].rank for one in _above(processes[pid], processes))


def _nearest_python(process: r.Process, processes: dict[int, r.Process]) -> int | None:
    """The Python process that this one descends from, with nothing between but shells, profilers and services."""
    return next((one.pid for one in _above(process, processes) if one.python and not is_service(one)), None)


def _above(process: r.Process, processes: dict[int, r.Process]) -> Iterator[r.Process]:
    """The ancestors, nearest first."""
    return islice(lineage(process, lambda one: processes.get(one.parent_pid)), 1, None)


def is_service(process: r.Process) -> bool:
    """True if a process is a helper of Python's own, of a library's, or of ours."""
    if process.name.startswith(OUR_NAME):
        return True
    if _SERVICE.search(" ".join(process.command[:1])) or _SERVICE.search(program_of(process.command) or ""):
        return True
    return any(_OF_MULTIPROCESSING.search(part) for part in process.command)


def is_worker(sights: Sights, process: r.Process) -> bool:
    """True if a process is a DataLoader worker."""
    return process.name.startswith(WORKER_THREAD) or "worker" in sights.of(process.pid)
