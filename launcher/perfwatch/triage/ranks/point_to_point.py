"""Which rank waits for which in sends and receives, as the flight recorders tell; NCCL's counts leave these calls out.

A rank that sends waits until the other one receives. The other comes to that when it has nothing older to wait in: where both
send first, neither does. Small messages are taken before anybody receives them, so a receive says less: the message may be
there, and this card busy with something else. A receive counts only between two ranks whose calls bear the same numbers.
"""

import re
from collections.abc import Mapping

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.collectives import recorded_groups
from perfwatch_probes.readings import BATCH, Operation, RecordedGroup

_PARTNERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})\b")

Calls = Mapping[int, tuple[RecordedGroup, Operation]]


def awaited(oldest: Calls, records: Mapping[tuple[int, str], RecordedGroup]) -> dict[int, tuple[int, ...]]:
    """By rank, whom it waits for in a send or receive; only of ranks that are all in calls, and have made no batches.

    oldest: the oldest call of each rank that is not over. records: by rank and group.
    """
    if any(operation.name == BATCH for record in records.values() for operation in record.operations):
        return {}
    found: dict[int, tuple[int, ...]] = {}
    for rank, (group, operation) in oldest.items():
        meant = _meant(group, operation)
        if meant is None or meant[1] not in oldest:
            continue
        kind, other = meant
        theirs = _meant(*oldest[other])
        if kind == "send":
            comes = theirs == ("recv", rank)
        else:
            comes = theirs == ("send", rank) or not _not_sent(operation, group, records.get((other, group.group)), rank)
        if not comes:
            found[rank] = (other,)
    return found


def exchanging(case: Case) -> bool:
    """Whether some rank's oldest recorded call that is not over is a send or a receive."""
    oldest: dict[int, Operation] = {}
    for dumps in recorded_groups(case).values():
        for one in dumps:
            known = oldest.get(one.reading.rank)
            calls = [*pending(one.reading), *([known] if known is not None else [])]
            if calls:
                oldest[one.reading.rank] = min(calls, key=lambda call: call.order)
    return any(operation.point_to_point for operation in oldest.values())


def pending(group: RecordedGroup) -> list[Operation]:
    """The calls of a rank in a group that are not over; those of a batch never seem to be, and the batch stands for them."""
    batch = max((one.order for one in group.operations if one.name == BATCH), default=-1)
    return [
        one
        for one in group.operations
        if one.state != "completed" and not (one.point_to_point and one.name != BATCH and one.order < batch)
    ]


def ways(names: list[str]) -> str:
    """``all send first``: how it comes that ranks in a ring of such calls wait; empty where it is of other calls too."""
    kinds = {match[1] if (match := _PARTNERS.match(name)) else "" for name in names}
    if kinds == {"send"}:
        return "each sends first, and the one that it sends to does not receive"
    if kinds == {"recv"}:
        return "each receives first, and nobody sends"
    return ""


def _meant(group: RecordedGroup, operation: Operation) -> tuple[str, int] | None:
    """``send`` or ``recv``, and the rank of the whole job at the other end; a recorder counts ranks within the group."""
    match = _PARTNERS.match(operation.name) if operation.point_to_point else None
    if match is None or int(match[3]) >= len(group.members):
        return None
    return match[1], group.members[int(match[3])]


def _not_sent(operation: Operation, group: RecordedGroup, there: RecordedGroup | None, rank: int) -> bool:
    """Whether the other of two ranks is known to have called something else under the number of a receive."""
    if there is None or len(group.members) != 2:
        return False
    same = [one for one in there.operations if one.point_to_point and one.sequence == operation.sequence]
    return len(same) == 1 and _meant(there, same[0]) == ("recv", rank)
