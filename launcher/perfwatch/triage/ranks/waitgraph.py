"""Which rank waits for which, through all groups at once, and who is at the end: the rank that nobody keeps waiting.

A rank's oldest call that is not over is what it waits in; whoever of that group has not come to it is waited for. Where the
recorders are not there, RAS' counts stand in: those ahead in a group wait for those behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.ranks.collectives import recorded_groups, shown, standings, stood_seconds
from perfwatch.triage.ranks.point_to_point import awaited, pending
from perfwatch.triage.ranks.standing import APART_SECONDS, Seat, Standing
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r

SHOWN = 3


@dataclass(frozen=True)
class WaitGraph:
    """Edges between ranks of the whole job. ``calls``: what each waiting rank is in."""

    edges: dict[int, tuple[int, ...]]
    seats: dict[int, Seat]
    calls: dict[int, str]
    frames: dict[int, r.Frame]
    standings: tuple[Standing, ...]
    source: str
    seconds: float
    _unnamed: tuple[Seat, ...] = field(default=())

    @property
    def together(self) -> bool:
        """Whether the recorders show every rank in one and the same call."""
        in_calls = self.source == "flight_recorder" and len(self.calls) == len(self.seats) > 1
        return in_calls and not self.edges and len(set(self.calls.values())) == 1

    @property
    def level(self) -> bool:
        """Whether RAS counts as many calls in every rank of each group, and none goes on."""
        return self.source == "nccl_ras" and len(self.seats) > 1 and not any(one.behind for one in self.standings)

    @property
    def ends(self) -> tuple[Seat, ...]:
        """Ranks that others wait for and that wait for nobody: the culprits."""
        awaited = {rank for targets in self.edges.values() for rank in targets}
        return (*(self.seats[rank] for rank in sorted(awaited) if not self.edges.get(rank)), *self._unnamed)

    @property
    def cycle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a ring, in order; empty where there is none, or somebody is at the end of it all."""
        if self.ends:
            return ()
        for start in sorted(self.edges):
            path: list[int] = []
            here: int | None = start
            while here is not None and here not in path:
                path.append(here)
                here = next(iter(self.edges.get(here, ())), None)
            if here is not None:
                return tuple(path[path.index(here) :])
        return ()

    def evidence(self, case: Case) -> tuple[Evidence, ...]:
        """One piece for each group that does not go on."""
        unlike = [one for one in self.standings if one.behind] or list(self.standings)
        return tuple(
            case.saw(
                one.source,
                f"group {one.group}",
                "its ranks have not called equally often, and none goes on"
                if one.behind
                else "none of its ranks goes on",
                f"{one.reach}, {one.unchanged(case.at)}",
                "counts grow",
                one.at,
            )
            for one in unlike[:SHOWN]
        )


def wait_graph(case: Case) -> WaitGraph | None:
    """The ranks that wait for each other now; None where nothing stands still, or nobody could tell."""
    return case.history.once(("wait_graph",), lambda: _by_records(case) or _by_counts(standings(case)))


def _by_records(case: Case) -> WaitGraph | None:
    groups = recorded_groups(case)
    dumps = [one for members in groups.values() for one in members]
    if not dumps or stood_seconds(case, dumps) < APART_SECONDS:
        return None
    oldest = _oldest(dumps)
    by_place = {(one.reading.rank, one.reading.group): one.reading for one in dumps}
    edges = _edges(oldest, by_place)
    edges = _ring(edges, awaited(oldest, by_place)) or {rank: targets for rank, targets in edges.items() if targets}
    known = {one.reading.rank: one.reading for one in dumps}
    seats = {rank: Seat(rank, reading.pid, reading.enqueued or 0) for rank, reading in known.items()}
    missed = {rank for targets in edges.values() for rank in targets}
    seats |= {rank: seat for rank, seat in _dead(case).items() if rank in missed}
    if missed - set(seats):
        return None  # of a rank whose recorder was not read nobody knows whether it has come
    return WaitGraph(
        edges=edges,
        seats=seats,
        calls={rank: shown(operation) for rank, (_, operation) in oldest.items()},
        frames={rank: operation.frames[0] for rank, (_, operation) in oldest.items() if operation.frames},
        standings=tuple(standings(case)),
        source="flight_recorder",
        seconds=max(stood_seconds(case, dumps), _counted_seconds(case, edges)),
    )


def _ring(edges: dict[int, tuple[int, ...]], sends: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Both kinds of waiting, where each rank that is waited for waits itself: then nobody is at the end, and no time heals it.

    A stage of a pipeline that waits for its neighbour is nothing by itself: without a ring sends and receives are left out.
    """
    both = {rank: targets for rank, targets in {**edges, **sends}.items() if targets}
    missed = {rank for targets in both.values() for rank in targets}
    return both if sends and missed <= both.keys() else {}


def _counted_seconds(case: Case, edges: dict[int, tuple[int, ...]]) -> float:
    """For how long RAS has counted what the recorders show: the same ranks wait for the same ones."""
    counted = _by_counts([one for one in standings(case) if one.source == "nccl_ras"])
    return counted.seconds if counted is not None and edges and counted.edges == edges else 0.0


def _dead(case: Case) -> dict[int, Seat]:
    """Ranks that were seen to end: they write no dump any more."""
    return {
        one.rank: Seat(one.rank, one.pid, 0, state="dead")
        for one in case.job.ranks
        if not one.alive and one.rank is not None
    }


Call = tuple[r.RecordedGroup, r.Operation]


def _oldest(dumps: list[Seen[r.RecordedGroup]]) -> dict[int, Call]:
    """By rank, in rank order, its oldest call that is not over, over all its groups."""
    found: dict[int, Call] = {}
    for one in dumps:
        for call in pending(one.reading):
            known = found.get(one.reading.rank)
            if known is None or call.order < known[1].order:
                found[one.reading.rank] = (one.reading, call)
    return dict(sorted(found.items()))


def _edges(
    oldest: Mapping[int, Call], by_place: Mapping[tuple[int, str], r.RecordedGroup]
) -> dict[int, tuple[int, ...]]:
    """By rank, who has not come to the call that it is in. Those in one call wait for the same ones: they are sought once."""
    edges: dict[int, tuple[int, ...]] = {}
    absent: dict[tuple[str, int, tuple[int, ...]], tuple[int, ...]] = {}
    for rank, (group, operation) in oldest.items():
        if operation.point_to_point:
            continue
        call = (group.group, operation.sequence, group.members)
        if call not in absent:
            absent[call] = tuple(
                member
                for member in group.members
                if not _has_come(by_place.get((member, group.group)), operation, oldest.get(member), group)
            )
        edges[rank] = tuple(member for member in absent[call] if member != rank)
    return edges


def _has_come(there: r.RecordedGroup | None, operation: r.Operation, busy: Call | None, group: r.RecordedGroup) -> bool:
    """Whether a member is in that call, or past it. One that has called it but is still in an earlier call has not come."""
    if there is None:
        return False
    if (there.completed or 0) >= operation.sequence:
        return True
    if (there.enqueued or 0) < operation.sequence:
        return False
    if busy is None or busy[1].point_to_point:
        return busy is None  # sends have numbers of their own
    return (busy[0].group, busy[1].sequence) == (group.group, operation.sequence)


def _by_counts(still: list[Standing]) -> WaitGraph | None:
    if not still:
        return None
    edges: dict[int, tuple[int, ...]] = {}
    seats: dict[int, Seat] = {}
    calls: dict[int, str] = {}
    frames: dict[int, r.Frame] = {}
    unnamed: list[Seat] = []
    for one in still:
        seats |= {seat.rank: seat for seat in one.seats if seat.rank is not None}
        unnamed += [seat for seat in one.behind if seat.rank is None]
        late = tuple(seat.rank for seat in one.behind if seat.rank is not None)
        late += tuple(seat.rank for seat in one.lost if seat.rank is not None)
        unnamed += [seat for seat in one.lost if seat.rank is None]
        for seat in one.ahead or (one.seats if one.lost else ()):
            if seat.rank is None or seat.rank in late:
                continue
            edges[seat.rank] = tuple(dict.fromkeys((*edges.get(seat.rank, ()), *late)))
            calls.setdefault(seat.rank, one.operation)
            if one.frame is not None:
                frames.setdefault(seat.rank, one.frame)
    return WaitGraph(
        edges={rank: targets for rank, targets in edges.items() if targets},
        seats=seats,
        calls=calls,
        frames=frames,
        standings=tuple(still),
        source=still[0].source,
        seconds=min(one.seconds for one in still),
        _unnamed=tuple(unnamed),
    )
