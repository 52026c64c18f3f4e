"""Stacks of all ranks, folded: equal stacks become one group with the ranks that show it, so that 512 ranks fit on a page.

Two stacks are equal when they have the same functions in the same order and, in the program's own frames, the same lines.
Lines of library frames do not count: a thread that polls inside torch or the standard library is now at this line of it,
now at that one. Where that still leaves more groups than a page holds, the stacks that only differ inside the library
call that the program made are put together; ``variants`` says how many there were. The program's own lines are never put
together: two ranks that call a collective from different lines are what the reader looks for.

``fold`` takes stacks from anywhere (a job's readings, py-spy's answers, sessions of many hosts). ``newest`` takes them from
a history. ``perfwatch.report.folding`` shows the result.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from perfwatch.triage.history import History
from perfwatch.triage.job import Job, RankGaps
from perfwatch.triage.questions import is_user, short_name, training_thread, usual_frames
from perfwatch_probes.readings import Frame

MOST_GROUPS = 12  # that a page shows in full; above it, variants inside a library call are put together

_NONE = RankGaps((), 0)


@dataclass(frozen=True)
class Place:
    """Where a stack was seen. ``role`` as in ``perfwatch.triage.job.Member``; ``host`` is empty where there is only one."""

    pid: int
    rank: int | None = None
    role: str = "rank"
    host: str = ""


@dataclass(frozen=True)
class Group:
    """All ranks and processes with one stack. ``frames``: of one of them, innermost first. ``places``: by rank, host and pid."""

    role: str
    frames: tuple[Frame, ...]
    places: tuple[Place, ...]
    variants: int = 1

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in the group (or that its workers belong to), each once, in order."""
        return tuple(sorted({place.rank for place in self.places if place.rank is not None}))


@dataclass(frozen=True)
class Folded:
    """All groups: the one of most ranks first, then from the smallest to the largest, for a rank that stands apart is the likely culprit.

    ``absent``: ranks below the world size without a stack.
    """

    groups: tuple[Group, ...]
    absent: RankGaps = _NONE

    @property
    def ranks(self) -> int:
        """How many ranks a stack was seen of."""
        return len({place.rank if place.rank is not None else place for place in self._of_ranks()})

    @property
    def workers(self) -> int:
        """How many other processes (DataLoader workers, children) a stack was seen of."""
        return sum(len(group.places) for group in self.groups if group.role != "rank")

    @property
    def dominant(self) -> Group | None:
        """The group of most ranks, where there is a group of ranks at all."""
        return self.groups[0] if self.groups and self.groups[0].role == "rank" else None

    @property
    def outliers(self) -> tuple[Group, ...]:
        """Every other group, the smallest first."""
        return self.groups[1:] if self.dominant else self.groups

    def _of_ranks(self) -> list[Place]:
        return [place for group in self.groups if group.role == "rank" for place in group.places]


def fold(
    stacks: Iterable[tuple[Place, tuple[Frame, ...]]], world_size: int | None = None, most: int = MOST_GROUPS
) -> Folded:
    """Group equal stacks.

    Args:
        stacks: one stack for each thread that counts (a rank's training thread, a worker's main thread), innermost frame
            first; without frames it counts as not seen.
        world_size: makes ``absent`` known.
        most: groups above which stacks that differ inside a library call only are put together.
    """
    seen = [(place, frames) for place, frames in stacks if frames]
    fine = _grouped(seen, _fine)
    groups = fine if len(fine) <= most else _grouped(seen, _coarse)
    of_ranks = [group for group in groups if group.role == "rank"]
    dominant = max(of_ranks, key=lambda group: (len(group.places), -_first(group)), default=None)
    others = sorted(
        (g for g in groups if g is not dominant), key=lambda g: (len(g.places), g.role != "rank", _first(g))
    )
    present = {place.rank for place, _ in seen if place.role == "rank"}
    return Folded(
        groups=(*((dominant,) if dominant else ()), *others),
        absent=RankGaps(present, world_size),
    )


def newest(history: History, job: Job, host: str = "") -> list[tuple[Place, tuple[Frame, ...]]]:
    """The stack in which each rank's training thread, and the main thread of each of its processes, was mostly seen lately."""
    found = []
    ranks = {rank.pid for rank in job.ranks}
    for member in job.members.values():
        if not member.alive or (member.pid not in ranks and member.rank_pid not in ranks) or member.role == "service":
            continue
        tid = training_thread(history, member) if member.pid in ranks else member.pid
        frames = usual_frames(history, member.pid, tid)
        if frames:
            found.append((Place(member.pid, member.rank, member.role, host), frames))
    return found


def _fine(frames: tuple[Frame, ...]) -> Hashable:
    return tuple((short_name(one.function), one.file, one.line if is_user(one) else 0) for one in frames)


def _coarse(frames: tuple[Frame, ...]) -> Hashable:
    """The program's own frames, and of the library only what they called."""
    kept = [
        one
        for index, one in enumerate(frames)
        if is_user(one) or index + 1 == len(frames) or is_user(frames[index + 1])
    ]
    return _fine(tuple(kept))


def _grouped(
    stacks: list[tuple[Place, tuple[Frame, ...]]], key: Callable[[tuple[Frame, ...]], Hashable]
) -> list[Group]:
    alike: dict[Hashable, list[tuple[Place, tuple[Frame, ...]]]] = {}
    for place, frames in stacks:
        alike.setdefault((place.role, key(frames)), []).append((place, frames))
    groups = []
    for same in alike.values():
        variants = Counter(_fine(frames) for _, frames in same)
        commonest = variants.most_common(1)[0][0]
        groups.append(
            Group(
                role=same[0][0].role,
                frames=next(frames for _, frames in same if _fine(frames) == commonest),
                places=tuple(sorted((place for place, _ in same), key=_order)),
                variants=len(variants),
            )
        )
    return groups


def _order(place: Place) -> tuple[bool, int, str, int]:
    return place.rank is None, place.rank or 0, place.host, place.pid


def _first(group: Group) -> int:
    return min(group.ranks, default=0)
