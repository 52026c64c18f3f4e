"""Which rank waits for which, through all groups at once, and which rank is at the end: the one that waits for no other.

A rank waits in its oldest call that is not over, for those of the group that have not come to it. Where the recorders are not there, RAS'
counts stand in: those ahead in a group wait for those behind. RAS does not count sends and receives; the recorders do. A rank that sends
waits until the other one receives, which comes to that when it has nothing older to wait in: where both send first, neither does. Small
messages are taken before they are received, so a receive says less: it counts only between two ranks whose calls bear the same numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.groups import Dump, Seat, Standing, recorded_groups, shown, standings, stood_seconds
from perfwatch.triage.ranks.thresholds import APART_SECONDS, FEW
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r
from perfwatch_probes.readings import BATCH, Operation, RecordedGroup

_PARTNERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})\b")

Edges = dict[int, tuple[int, ...]]  # by rank, the ranks that it waits for
Calls = Mapping[int, tuple[RecordedGroup, Operation]]  # by rank, its oldest call that is not over
Records = Mapping[tuple[int, str], RecordedGroup]  # by rank and group


@dataclass(frozen=True)
class WaitGraph:
    """Edges between ranks of the whole job. ``calls``: what each waiting rank is in."""

    edges: Edges
    seats: dict[int, Seat]
    calls: dict[int, str]
    frames: dict[int, r.Frame]
    standings: tuple[Standing, ...]
    source: str
    seconds: float
    _unnamed: tuple[Seat, ...] = field(default=())

    @property
    def recorded(self) -> bool:
        """True if the flight recorders say so, and not RAS' counts."""
        return self.source == "flight_recorder"

    @property
    def together(self) -> bool:
        """True if the recorders show every rank in one and the same call."""
        in_calls = self.recorded and len(self.calls) == len(self.seats) > 1
        return in_calls and not self.edges and len(set(self.calls.values())) == 1

    @property
    def level(self) -> bool:
        """True if RAS counts as many calls in every rank of each group, and none goes on."""
        return not self.recorded and len(self.seats) > 1 and not any(one.behind for one in self.standings)

    @property
    def ends(self) -> tuple[Seat, ...]:
        """Ranks that others wait for and that wait for no other: the culprits."""
        return (
            *(self.seats[rank] for rank in sorted(_targets(self.edges)) if not self.edges.get(rank)),
            *self._unnamed,
        )

    @property
    def cycle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a ring, in order; empty where there is none, or a rank is at the end of it all."""
        if self.ends or not self.edges:
            return ()
        path: list[int] = []
        here = min(self.edges)
        while here not in path:
            path.append(here)
            here = self.edges[here][0]
        return tuple(path[path.index(here) :])

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
            for one in unlike[:FEW]
        )


def wait_graph(case: Case) -> WaitGraph | None:
    """The ranks that wait for each other now; None where nothing stands still, or neither source tells."""
    return case.history.once(("wait_graph",), lambda: _by_records(case) or _by_counts(standings(case)))


def exchanging(case: Case) -> bool:
    """True if some rank's oldest recorded call that is not over is a send or a receive."""
    return any(operation.point_to_point for _, operation in _oldest(_dumps(case)).values())


def why_in_a_ring(names: list[str]) -> str:
    """How it comes that the ranks in these calls wait for each other in a ring."""
    kinds = {match[1] if (match := _PARTNERS.match(name)) else "" for name in names}
    if kinds == {"send"}:
        return "each sends first, and the one that it sends to does not receive"
    if kinds == {"recv"}:
        return "each receives first, and none of them sends"
    return "one makes a call more than the next, or in another order"


def _dumps(case: Case) -> list[Dump]:
    return [one for members in recorded_groups(case).values() for one in members]


def _by_records(case: Case) -> WaitGraph | None:
    dumps = _dumps(case)
    if not dumps or stood_seconds(case, dumps) < APART_SECONDS:
        return None
    oldest = _oldest(dumps)
    records = {(one.reading.rank, one.reading.group): one.reading for one in dumps}
    edges = _edges(oldest, records)
    with_sends = {**edges, **_awaited_partners(oldest, records)}
    if _targets(with_sends) <= with_sends.keys():  # a ring; else a stage of a pipeline may just wait for its neighbour
        edges = with_sends
    targets = _targets(edges)
    seats = {
        one.rank: Seat(one.rank, one.pid, 0, state="dead")  # it writes no dump any more
        for one in case.job.ranks
        if not one.alive and one.rank in targets
    }
    seats |= {one.reading.rank: Seat(one.reading.rank, one.reading.pid, one.reading.enqueued or 0) for one in dumps}
    if targets - set(seats):
        return None  # it is not known whether a rank has come whose recorder was not read
    return WaitGraph(
        edges=edges,
        seats=seats,
        calls={rank: shown(operation) for rank, (_, operation) in oldest.items()},
        frames={rank: operation.frames[0] for rank, (_, operation) in oldest.items() if operation.frames},
        standings=tuple(standings(case)),
        source="flight_recorder",
        seconds=stood_seconds(case, dumps),
    )


def _targets(edges: Edges) -> set[int]:
    return {rank for targets in edges.values() for rank in targets}


def _oldest(dumps: list[Dump]) -> Calls:
    """By rank, in rank order, its oldest call that is not over, over all its groups."""
    found: dict[int, tuple[RecordedGroup, Operation]] = {}
    for one in dumps:
        for call in _pending(one.reading):
            known = found.get(one.reading.rank)
            if known is None or call.order < known[1].order:
                found[one.reading.rank] = (one.reading, call)
    return dict(sorted(found.items()))


def _pending(group: RecordedGroup) -> list[Operation]:
    """The calls of a rank in a group that are not over; those of a batch never seem to be, and the batch stands for them."""
    batch = max((one.order for one in group.operations if one.name == BATCH), default=-1)
    return [
        one
        for one in group.operations
        if one.state != "completed" and not (one.point_to_point and one.name != BATCH and one.order < batch)
    ]


def _edges(oldest: Calls, records: Records) -> Edges:
    """By rank, which ranks have not come to the call that it is in. Those in one call wait for the same ones: they are sought once."""
    edges: Edges = {}
    absent: dict[tuple[str, int, tuple[int, ...]], tuple[int, ...]] = {}
    for rank, (group, operation) in oldest.items():
        if operation.point_to_point:
            continue
        call = (group.group, operation.sequence, group.members)
        if call not in absent:
            absent[call] = tuple(one for one in group.members if not _has_come(one, group, operation, oldest, records))
        if waited_for := tuple(one for one in absent[call] if one != rank):
            edges[rank] = waited_for
    return edges


def _has_come(member: int, group: RecordedGroup, operation: Operation, oldest: Calls, records: Records) -> bool:
    """True if a member is in that call, or past it. One that has called it but is still in an earlier call has not come."""
    there, busy = records.get((member, group.group)), oldest.get(member)
    if there is None:
        return False
    if (there.completed or 0) >= operation.sequence:
        return True
    if (there.enqueued or 0) < operation.sequence:
        return False
    if busy is None or busy[1].point_to_point:
        return busy is None  # sends have numbers of their own
    return (busy[0].group, busy[1].sequence) == (group.group, operation.sequence)


def _awaited_partners(oldest: Calls, records: Records) -> Edges:
    """By rank, which one it waits for in a send or receive; only of ranks that are all in calls, and have made no batches."""
    if any(operation.name == BATCH for record in records.values() for operation in record.operations):
        return {}
    found: Edges = {}
    for rank, (group, operation) in oldest.items():
        meant = _partner(group, operation)
        if meant is None or meant[1] not in oldest:
            continue
        kind, other = meant
        theirs = _partner(*oldest[other])
        if kind == "send":
            comes = theirs == ("recv", rank)
        else:
            comes = theirs == ("send", rank) or not _not_sent(operation, group, records.get((other, group.group)), rank)
        if not comes:
            found[rank] = (other,)
    return found


def _partner(group: RecordedGroup, operation: Operation) -> tuple[str, int] | None:
    """``send`` or ``recv``, and the rank of the whole job at the other end; a recorder counts ranks within the group."""
    match = _PARTNERS.match(operation.name) if operation.point_to_point else None
    if match is None or int(match[3]) >= len(group.members):
        return None
    return match[1], group.members[int(match[3])]


def _not_sent(operation: Operation, group: RecordedGroup, there: RecordedGroup | None, rank: int) -> bool:
    """True if the other of two ranks is known to have called something else under the number of a receive."""
    if there is None or len(group.members) != 2:
        return False
    same = [one for one in there.operations if one.point_to_point and one.sequence == operation.sequence]
    return len(same) == 1 and _partner(there, same[0]) == ("recv", rank)


def _by_counts(still: list[Standing]) -> WaitGraph | None:
    if not still:
        return None
    edges: Edges = {}
    seats: dict[int, Seat] = {}
    calls: dict[int, str] = {}
    frames: dict[int, r.Frame] = {}
    unnamed: list[Seat] = []
    for one in still:
        seats |= {seat.rank: seat for seat in one.seats if seat.rank is not None}
        awaited = (*one.behind, *one.lost)
        unnamed += [seat for seat in awaited if seat.rank is None]
        late = tuple(seat.rank for seat in awaited if seat.rank is not None)
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
