"""Whether the ranks of a group mean the same call: the flight recorders' entries of one sequence number, side by side."""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.collectives import recorded_groups
from perfwatch.triage.ranks.lapsed import passed
from perfwatch_probes import readings as r

# Calls whose tensors must be of one size in every rank; of the others, sizes may differ by design or by rank.
SAME_SIZE = frozenset(
    "all_reduce allreduce_coalesced broadcast reduce _all_gather_base all_gather_into_tensor _reduce_scatter_base"
    " reduce_scatter_tensor all_gather_single reduce_scatter_single all_reduce_barrier".split()
)


@dataclass(frozen=True)
class Disagreement:
    """One sequence number of one group that means different calls. ``what``: operation, size or dtype."""

    group: str
    sequence: int
    what: str
    calls: tuple[tuple[int, int, r.Operation], ...]  # rank, pid, call
    at: float
    over: bool  # every rank has got past it: the data was mixed up, and training went on


def disagreement(case: Case) -> Disagreement | None:
    """The newest one that is still open, else the newest of all; None where the ranks agree as far as was recorded."""
    found: list[Disagreement] = []
    for (group, _), dumps in recorded_groups(case).items():
        by_sequence: dict[int, list[tuple[int, int, r.Operation]]] = {}
        for one in dumps:
            for operation in one.reading.operations:
                if not operation.point_to_point:
                    place = (one.reading.rank, one.reading.pid, operation)
                    by_sequence.setdefault(operation.sequence, []).append(place)
        described = next((one.reading.description for one in dumps if one.reading.description), "") or group
        for sequence, calls in sorted(by_sequence.items()):
            what = _differs([operation for _, _, operation in calls])
            if what:
                over = all(operation.state == "completed" for _, _, operation in calls)
                if not over and any(passed(case, one) for one in dumps):
                    continue  # what came of it since nobody has looked up
                found.append(Disagreement(described, sequence, what, tuple(calls), max(d.at for d in dumps), over))
    still = [one for one in found if not one.over]
    return still[0] if still else found[-1] if found else None


def _differs(calls: list[r.Operation]) -> str:
    if len(calls) < 2:
        return ""
    if len({call.name for call in calls}) > 1:
        return "operation"
    if len({call.dtypes for call in calls if call.dtypes}) > 1:
        return "dtype"
    if calls[0].name in SAME_SIZE and len({call.input_elements for call in calls}) > 1:
        return "size"
    return ""
