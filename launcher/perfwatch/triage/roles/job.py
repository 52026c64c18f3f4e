"""Who is who in the job: ranks, DataLoader workers, launchers, children, told from the readings alone.

Which processes are ranks, ``rank_processes`` finds; what lies below one belongs to it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec

from perfwatch.triage.history import History
from perfwatch.triage.roles.forkserver import adopted
from perfwatch.triage.roles.generations import former
from perfwatch.triage.roles.rank_gaps import RankGaps
from perfwatch.triage.roles.rank_processes import Ranks, find_ranks, is_service, is_worker
from perfwatch.triage.roles.ray_train import of_ray_train
from perfwatch.triage.roles.sights import Sights
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes import readings as r
from perfwatch_probes.lineage import lineage

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
        """Whether a process was made by ``multiprocessing`` or ``multiprocess``: a fork of a Python parent, or a spawn or fork server."""
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
        """Whether every rank that the job says it has is seen."""
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
    """Whether nothing says that they train together: no number of torch's, no group (of processes, of Ray's workers), no communicator.

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
