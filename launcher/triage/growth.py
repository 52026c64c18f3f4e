"""How the pace of a run changes: steps that become longer once and for good, and steps that grow longer and longer."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

from perfwatch.triage.history import median, quantile

PARTS = 8
EACH_PART = 8  # in each part
GROWN = 1.5  # times, from the first part to the last
IN_ORDER = 0.85  # of the pairs of parts: the later one takes longer
ONE_JUMP = 0.6  # of the growth (of its logarithm) between two neighbours at most: else it is a shift
FEW_STEPS = 12  # on each side of the change
RATIO = 1.2
# The pace before must have lasted: a GPU's queue takes in the first steps as fast as they are launched.
BEFORE_SECONDS = 2.0
OVERLAP = 0.25  # the slower quarter before and the faster quarter after must not overlap


def growing(intervals: Sequence[float]) -> tuple[float, float] | None:
    """The median step of the first and of the last part of the run, where steps grow all along; None where they do not.

    Args:
        intervals: seconds, oldest first.
    """
    length = len(intervals) // PARTS
    if length < EACH_PART:
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


def change_point(intervals: tuple[float, ...]) -> tuple[int, float, float] | None:
    """Where the median shifts upward for good: (index, median before, median after); None when it does not."""
    best: tuple[float, int, float, float] | None = None
    stride = max(1, len(intervals) // 64)
    for index in range(FEW_STEPS, len(intervals) - FEW_STEPS + 1, stride):
        before, after = intervals[:index], intervals[index:]
        low, high = median(before) or 0.0, median(after) or 0.0
        if sum(before) < BEFORE_SECONDS or low <= 0 or high < RATIO * low:
            continue
        separated = (quantile(after, OVERLAP) or 0.0) - (quantile(before, 1 - OVERLAP) or 0.0)
        if separated > 0 and (best is None or separated > best[0]):
            best = (separated, index, low, high)
    return best[1:] if best else None
