"""Steps that grow longer and longer, rather than once and for good: told from the medians of equal parts of the run."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

from perfwatch.triage.history import median

PARTS = 8
FEW_STEPS = 8  # in each part
GROWN = 1.5  # times, from the first part to the last
IN_ORDER = 0.85  # of the pairs of parts: the later one takes longer
ONE_JUMP = 0.6  # of the growth (of its logarithm) between two neighbours at most: else it is a shift


def growing(intervals: Sequence[float]) -> tuple[float, float] | None:
    """The median step of the first and of the last part of the run, where steps grow all along; None where they do not.

    Args:
        intervals: seconds, oldest first.
    """
    length = len(intervals) // PARTS
    if length < FEW_STEPS:
        return None
    newest = intervals[len(intervals) - PARTS * length :]
    parts = [median(newest[at : at + length]) or 0.0 for at in range(0, len(newest), length)]
    if min(parts) <= 0 or parts[-1] < GROWN * parts[0]:
        return None
    ordered = [later > earlier for earlier, later in combinations(parts, 2)]
    jump = max(math.log(later / earlier) for earlier, later in pairwise(parts))
    if sum(ordered) < IN_ORDER * len(ordered) or jump > ONE_JUMP * math.log(parts[-1] / parts[0]):
        return None
    return parts[0], parts[-1]
