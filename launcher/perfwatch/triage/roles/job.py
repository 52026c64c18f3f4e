"""The part of each process in the job: rank, DataLoader worker, launcher or child, by the readings alone.

What lies below a rank belongs to it. Ranks are found

- by the numbers that a launcher gave them (``placement``): the outermost process with a number, for a DataLoader worker inherits it;
- else, as a plain spawn sets ``RANK`` inside of the process, where it cannot be seen, by what their parent waits for.

A driver that only starts trainings (a sweep, folds of a cross-validation) is no rank. Its trainings are, each by itself, as under
Ray. A process that a training has started to work for it (an inference engine) is none, even in a process group.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads, was_at
from perfwatch.triage.roles.placement import (
    RUNS,
    Placement,
    RankGaps,
    launches,
    of_ray_train,
    placement,
    program_of,
    ray_ranks,
    runs_training,
    untold_ranks,
)
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.words.frames import SERVICES, any_tag, is_user, own_frames, short_name, tags
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import count
from perfwatch_probes.lineage import lineage

TICKS_PER_SECOND = 100  # USER_HZ, fixed by the kernel's ABI on every Linux that torch runs on
COMPILE_WORDS = ("compile_worker", "_inductor")
WORKER_THREAD = "pt_data_worker"  # the name that torch gives a DataLoader worker's main thread
TRAINING = ("optimizer", "backward", "loader", "forward")
OUR_NAME = "perfwatch"  # launchers, watchers and writers of ours name themselves so: never part of what they watch
STARTED_SECONDS = 5.0  # within which a launcher starts the ranks of one host
WAITS_FOR_CHILDREN = ("child_wait", "mp_join")
JOINS = ("spawn_join", *WAITS_FOR_CHILDREN)

_SERVICE = re.compile(SERVICES)
# Imported by a ``-c``, or run by ``-m``.
_OF_MULTIPROCESSING = re.compile(r"\.(?:resource_tracker|forkserver|semaphore_tracker)\b")
_SERVER = re.compile(r"\bmultiprocess(?:ing)?\.forkserver\b")

Ranks = dict[int, int | None]  # by pid; None: it has no rank number, and nothing says that it is one of a group
ASKS_FOR_TASKS = ("queue_get", "mp_queue_get", "mp_receive")
# How torch and its backends name the threads of a process group (gloo's loop, NCCL's watchdog, heartbeat and proxy).
GROUP_THREADS = ("gloo", "pt_nccl", "NCCL", "nccl", "pt_gloo")
STORE_THREAD = "pt_tcpstore"  # how torch names the thread of a TCPStore's server (torch 2.1 to 2.13)


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
        return [member for member in self._of_ranks.get(rank_pid, ()) if member.role == "worker"]

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


class Sights:
    """What is known of every process, gathered in one pass: a job can have thousands of threads."""

    def __init__(self, history: History, processes: dict[int, r.Process], ended: dict[int, r.ProcessEnded]) -> None:
        self._history, self.processes, self.ended = history, processes, ended
        self.all: dict[int, set[str]] = {}  # tags of all its threads' newest stacks
        self.main: dict[int, r.Stack] = {}
        # Belongs to a process group, by its stacks or a thread that torch made for one.
        self.in_group: set[int] = set()
        self.for_ray: set[int] = set()  # A thread of it runs a training that was given to Ray.
        self.stores: set[int] = set()  # It serves torch's store, which rank 0 does.
        for pid, tid in history.entities(r.Stack):
            seen = history.latest(r.Stack, pid, tid)
            if seen is None:
                continue
            self.all.setdefault(pid, set()).update(tags(seen.reading))
            if pid == tid:
                self.main[pid] = seen.reading
            elif runs_training(seen.reading):
                self.for_ray.add(pid)
        for pid, tid in history.entities(r.Thread):
            thread = history.latest(r.Thread, pid, tid)
            if thread is not None and thread.reading.name.startswith(GROUP_THREADS):
                self.in_group.add(pid)
            if thread is not None and thread.reading.name.startswith(STORE_THREAD):
                self.stores.add(pid)
        self.in_group |= {pid for pid, found in self.all.items() if any_tag(found, "collective", "rendezvous")}

    def of(self, pid: int) -> frozenset[str]:
        """Tags of all threads of a process."""
        return frozenset(self.all.get(pid, ()))

    def of_main(self, pid: int) -> frozenset[str]:
        """Tags of its main thread."""
        return tags(self.main[pid]) if pid in self.main else frozenset()

    def counts(self, pid: int) -> bool:
        """True if the agent has counted steps in it."""
        counted = self._history.latest(r.Steps, pid)
        return counted is not None and counted.reading.count > 0

    def has_trained(self, pid: int) -> bool:
        """True if it has made steps, or was seen in the midst of one."""
        return self.counts(pid) or self.was_at(pid, "backward", "optimizer")

    def trains(self, pid: int) -> bool:
        """True if it has trained and lives."""
        return pid not in self.ended and self.has_trained(pid)

    def asks(self, pid: int) -> bool:
        """True if its main thread is in a library's own loop, which takes its next task from a queue."""
        return pid in self.main and _asks(self.main[pid])

    def has_asked(self, pid: int) -> bool:
        """True if it was ever seen there; the newest stack is looked at first."""
        return any(_asks(one.reading) for one in reversed(self._history.series(r.Stack, pid, pid)))

    def was_at(self, pid: int, *any_of: str) -> bool:
        """True if its main thread was ever seen in a stack with one of these tags."""
        return was_at(self._history, pid, pid, *any_of)

    def above(self, process: r.Process) -> Iterator[r.Process]:
        """The ancestors of a process, nearest first."""
        return islice(lineage(process, lambda one: self.processes.get(one.parent_pid)), 1, None)

    def python_above(self, process: r.Process) -> int | None:
        """The Python process that this one descends from, with nothing between but shells, profilers and services."""
        return next((one.pid for one in self.above(process) if one.python and not is_service(one)), None)

    def python_below(self, pid: int) -> list[r.Process]:
        """The Python processes whose nearest Python ancestor this one is."""
        return [one for one in self.processes.values() if one.python and self.python_above(one) == pid]


def _asks(stack: r.Stack) -> bool:
    return any_tag(tags(stack), *ASKS_FOR_TASKS) and not any(map(is_user, own_frames(stack)))


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
    sights = Sights(history, processes, ended)
    found = find_ranks(sights)
    members: dict[int, Member] = {}
    for pid, process in sorted(processes.items()):
        owner = next((one.pid for one in (process, *sights.above(process)) if one.pid in found.ranks), None)
        role = "rank" if owner == pid else _role(sights, process, owner)
        rank = found.ranks[owner] if owner is not None else None
        members[pid] = Member(process, role, rank, owner, ended.get(pid))
    over = former(
        (members[pid].process for pid in found.ranks if not members[pid].alive),
        (members[pid].process for pid in found.ranks if members[pid].alive),
    )
    present = [members[pid] for pid in found.ranks if pid not in over]
    ordered = tuple(sorted(present, key=lambda m: (m.rank or 0, m.pid)))
    sizes = [one.process.world_size for one in present if over and one.process.world_size is not None]
    size = max(sizes, default=found.world_size)
    return Job(members, _newest(ordered), size, found.numbered, found.doubt, _apart(history, sights, ordered))


def _apart(history: History, sights: Sights, ranks: tuple[Member, ...]) -> bool:
    """True if nothing says that they train together: no number of torch's, no group (of processes, of Ray's workers), no communicator.

    A sweep starts one for each card, and srun numbers whatever it starts.
    """
    together = any(
        rank.process.rank is not None
        or rank.pid in sights.in_group
        or (rank.rank is not None and of_ray_train(rank.process))
        for rank in ranks
    )
    return len(ranks) > 1 and not (together or history.entities(r.Communicator) or history.entities(r.RecordedGroup))


def _newest(ranks: tuple[Member, ...]) -> tuple[Member, ...]:
    """Of several processes with one rank (an elastic restart), the one that lives, or else the youngest."""
    best: dict[int, Member] = {}
    for member in ranks:
        number = -member.pid if member.rank is None else member.rank
        best[number] = max(best.get(number, member), member, key=lambda one: (one.alive, one.process.start_ticks))
    return tuple(best.values())


def _role(sights: Sights, process: r.Process, owner: int | None) -> str:
    if is_service(process):
        return "service"
    if any(word in part for part in process.command for word in COMPILE_WORDS):
        return "compile"
    if owner is None:
        return "launcher"
    if is_worker(sights, process):
        return "worker"
    return "pool_worker" if any_tag(sights.of(process.pid), "pool_worker", "futures_worker") else "child"


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
        known = newest.get(one.parent_pid, one)
        if one.rank is not None and one.start_ticks >= known.start_ticks:
            newest[one.parent_pid] = one
    over = set()
    for one in dead:
        later = newest.get(one.parent_pid)
        if one.rank is not None and later is not None and later.start_ticks > one.start_ticks:
            more = (restarts_before(later) or 0) > (restarts_before(one) or 0)
            over |= {one.pid} if more or later.world_size != one.world_size else set()
    return frozenset(over)


def restarts_before(process: r.Process) -> int | None:
    """How many generations failed before this one, as torchrun says; None where it does not."""
    return count(process.environment.get("TORCHELASTIC_RESTART_COUNT"))


@dataclass(frozen=True)
class Found:
    """The ranks of a job, the world size where anybody says it, and whether a launcher numbered them (or we did)."""

    ranks: Ranks
    world_size: int | None
    numbered: bool
    doubt: str = ""  # about their numbers


def find_ranks(sights: Sights) -> Found:
    """Who trains."""
    programs = {pid: one for pid, one in sights.processes.items() if one.python and not is_service(one)}
    candidates = {pid: one for pid, one in programs.items() if not launches(one)}
    of_ray = ray_ranks(candidates, sights.for_ray, sights.ended, sights.stores)
    if of_ray:  # whatever they inherited is the number of their driver
        group = [pid for pid, rank in of_ray.items() if rank is not None]
        return Found(of_ray, None, numbered=False, doubt=untold_ranks(group, sights.stores))
    told = {pid: Placement(one.rank, one.world_size) for pid, one in candidates.items() if one.rank is not None}
    if not told:
        told = {pid: place for pid, one in candidates.items() if (place := placement(one)) is not None}
    told = {pid: place for pid, place in told.items() if not _helps(sights, pid)}
    told = _passed_on(sights, told)
    if told:
        return _placed(sights, told)
    found: Ranks = {}
    for root in _by_start(one for one in programs.values() if sights.python_above(one) is None):
        found.update(_descend(sights, root))
    if len(found) > 1 and set(found.values()) == {None} and not sights.in_group.isdisjoint(found):
        found = {pid: number for number, pid in enumerate(found)}  # of a custom launcher, in its order
    sizes = (sights.processes[pid].world_size for pid in found)
    return Found(found, max((size for size in sizes if size is not None), default=None), numbered=False)


def _passed_on(sights: Sights, told: dict[int, Placement]) -> dict[int, Placement]:
    """The same, but a number that only a DataLoader worker shows is that of the process which made it.

    A program that sets ``RANK`` itself cannot be seen to have it; what it spawns inherits it.
    """
    found: dict[int, Placement] = {}
    for pid, place in told.items():
        above = sights.python_above(sights.processes[pid])
        made_by = above is not None and above not in told and is_worker(sights, sights.processes[pid])
        found.setdefault(above if made_by and above is not None else pid, place)
    return found


def _helps(sights: Sights, pid: int) -> bool:
    """True if a process without torch lies below one that has it and does not merely start others.

    What was numbered within the training's own process (MPI does so in ``MPI_Init``) can be seen in its children alone.
    """
    above = sights.python_above(sights.processes[pid])
    if above is None or sights.processes[pid].torch_loaded is not False or not sights.processes[above].torch_loaded:
        return False
    return not launches(sights.processes[above]) and not any_tag(sights.of_main(above), *JOINS)


def _placed(sights: Sights, told: dict[int, Placement]) -> Found:
    """The outermost process with each number; one that spawned ranks and waits for them stands for its host, not for a rank."""
    found: Ranks = {}
    sizes: list[int] = []
    for pid, place in told.items():
        above = sights.above(sights.processes[pid])
        if any(one.pid in told and told[one.pid].rank == place.rank for one in above):
            continue  # it only inherited the number
        below = list(_descend(sights, sights.processes[pid])) if "spawn_join" in sights.of_main(pid) else [pid]
        for index, one in enumerate(below):
            found[one] = place.rank * len(below) + index
        sizes += [place.size * len(below)] if place.size is not None else []
    size = max(sizes, default=None)
    return Found({**found, **_ended_unread(sights, found, size)}, size, numbered=True)


def _ended_unread(sights: Sights, found: Ranks, size: int | None) -> Ranks:
    """Ranks that were zombies at first sight, so that nothing of them could be read: siblings of the others, as many as are missing.

    Only where all ranks are known to be on this host, and of those that started with the others: any program leaves zombies. A
    launcher starts its ranks in their order; of several, nothing else says which number each had.
    """
    ranks = [sights.processes[pid] for pid in found]
    if size is None or not all(_is_whole(one, size) for one in ranks):
        return {}
    parents, first = {one.parent_pid for one in ranks}, min(one.start_ticks for one in ranks)
    zombies = sorted(
        pid
        for pid, one in sights.processes.items()
        if pid in sights.ended and one.python and not one.command and one.parent_pid in parents and pid not in found
        if abs(one.start_ticks - first) <= STARTED_SECONDS * TICKS_PER_SECOND
    )
    if len(found) + len(zombies) != size:
        return {}
    return dict(zip(zombies, (number for number in range(size) if number not in found.values()), strict=False))


def _is_whole(rank: r.Process, size: int) -> bool:
    """True if a rank says that its whole job is on this host: as many ranks here as in all, or a store on the loopback."""
    address = rank.environment.get("MASTER_ADDR", "")
    return rank.local_world_size == size or address == "localhost" or address.startswith("127.")


def _by_start(processes: Iterable[r.Process]) -> list[r.Process]:
    return sorted(processes, key=lambda one: (one.start_ticks, one.pid))


def _descend(sights: Sights, process: r.Process) -> Ranks:
    """The rank(s) at or below a top Python process: past launchers, and into the children of a plain spawn."""
    children = [one for one in sights.python_below(process.pid) if not is_service(one) and not is_worker(sights, one)]
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
        return {child.pid: index for index, child in enumerate(_by_start(likely))}
    if grouped:  # it trains as the first rank itself
        return {one.pid: index for index, one in enumerate([process, *_by_start(grouped)])}
    started = _started(sights, process, children)
    if started:
        return started
    heavy = [child for child in children if child.torch_loaded]
    trains = len(heavy) == 1 and any_tag(sights.of(heavy[0].pid), *TRAINING)
    joins = trains and "mp_join" in sights.of_main(process.pid)
    above = process.torch_loaded is False or joins or launches(process) or _only_launches(sights, process.pid)
    if len(heavy) == 1 and above:
        return _descend(sights, heavy[0])
    return {process.pid: None}


def _work_for(sights: Sights, pid: int, grouped: list[int]) -> bool:
    """True if the members of process groups below one train nothing and work for it: an inference engine has a group of its own.

    Who trains without them, and in no group, needs no more to be known. One that has not trained yet may only supervise them, and
    is taken for the rank while a lone one asks for its next task: an engine of a server that stands at anything else is looked at.
    """
    if not grouped or any_tag(sights.of_main(pid), *JOINS) or any(map(sights.trains, grouped)):
        return False
    if sights.has_trained(pid):
        return pid not in sights.in_group or all(map(sights.has_asked, grouped))
    return len(grouped) == 1 and sights.asks(grouped[0])


def _started(sights: Sights, driver: r.Process, children: list[r.Process]) -> Ranks:
    """The trainings below a process that makes no steps itself; none where it trains, or where that cannot be told.

    Where steps are counted below it and never in it, it need not be seen to wait.
    """
    if sights.counts(driver.pid) or sights.was_at(driver.pid, *TRAINING):
        return {}
    below = [_descend(sights, one) for one in children if _trains_below(sights, one)]
    waits = any_tag(sights.of_main(driver.pid), *WAITS_FOR_CHILDREN)
    if not waits and not any(sights.counts(pid) for found in below for pid in found):
        return {}
    if len(below) > 1 and any(number is not None for found in below for number in found.values()):
        return {}  # several groups: their numbers would be taken for those of one
    return {pid: number for found in below for pid, number in found.items()}


def _trains_below(sights: Sights, process: r.Process) -> bool:
    return sights.trains(process.pid) or any(_trains_below(sights, one) for one in sights.python_below(process.pid))


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


def training_thread(history: History, rank: Member) -> int:
    """The thread that runs the steps: what the agent says, else the one seen at training work, else Ray's for it, else the main one."""
    steps = history.latest(r.Steps, rank.pid)
    if steps is not None and steps.reading.tid:
        return steps.reading.tid
    if was_at(history, rank.pid, rank.pid, *TRAINING_TAGS):
        return rank.pid
    for tid in python_threads(history, rank.pid):
        if was_at(history, rank.pid, tid, "optimizer", "loader", "backward"):
            return tid
    given = (tid for tid in python_threads(history, rank.pid) if was_at(history, rank.pid, tid, RUNS))
    return next(given, rank.pid)
