"""How the pace of a run changes: steps that become longer once and for good, and steps that grow longer and longer.

And of the latter, which function of the program's own accounts for it.
"""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

from perfwatch.triage.history import median, quantile
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.words.frames import short_name, user_frame
from perfwatch_probes.readings import Frame

PARTS = 8
EACH_PART = 8  # in each part
GROWN = 1.5  # times, from the first part to the last
IN_ORDER = 0.85  # of the pairs of parts: the later one takes longer
ONE_JUMP = 0.6  # of the growth (of its logarithm) between two neighbours at most: else it is a shift
MOST_LINES = 20  # that are asked after
CARRIED = 0.5  # of the growth, by a function that is named for it
FEW_STEPS = 12  # on each side of the change
RATIO = 1.2
# The pace before must have lasted: a GPU's queue takes in the first steps as fast as they are launched.
BEFORE_SECONDS = 2.0
# Of the dozens on either side so many may be as those on the other: on a machine with neighbours a second passes otherwise now and
# then (measured: up to 0.04). As the newest ones, so many in a row are no accident.
STRAYS, LASTS = 0.05, 5
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


def change_point(intervals: tuple[float, ...], each: float = 1.0) -> tuple[int, float, float] | None:
    """Where the median shifts upward for good: (index, median before, median after); None when it does not.

    Args:
        intervals: seconds, oldest first.
        each: how many steps were made for each that is listed: a look lists the newest ones.
    """
    best: tuple[float, int, float, float] | None = None
    stride = max(1, len(intervals) // 64)
    for index in range(FEW_STEPS, len(intervals) - FEW_STEPS + 1, stride):
        before, after = intervals[:index], intervals[index:]
        low, high = median(before) or 0.0, median(after) or 0.0
        if each * sum(before) < BEFORE_SECONDS or low <= 0 or high < RATIO * low:
            continue
        separated = (quantile(after, OVERLAP) or 0.0) - (quantile(before, 1 - OVERLAP) or 0.0)
        if separated > 0 and (best is None or separated > best[0]) and not _comes_back(before, after, low, high):
            best = (separated, index, low, high)
    return best[1:] if best else None


def _comes_back(before: Sequence[float], after: Sequence[float], low: float, high: float) -> bool:
    """Whether steps were as long before for a while, or as quick again after: sorted batches begin anew with each epoch.

    The first steps of a run do not count: they are slow by nature.
    """
    middle = math.sqrt(low * high)
    earlier = [one > middle for one in _blocks(before[FEW_STEPS:])]
    while earlier and earlier[-1]:
        earlier.pop()  # the change itself lies a little earlier
    later = [one < middle for one in _blocks(after)]
    return any(sum(one) > STRAYS * len(one) for one in (earlier, later)) or all(later[-LASTS:])


def _blocks(intervals: Sequence[float]) -> list[float]:
    """The median of each dozen."""
    starts = range(0, len(intervals) - FEW_STEPS + 1, FEW_STEPS)
    return [median(intervals[at : at + FEW_STEPS]) or 0.0 for at in starts]


def carrier(seen: Profile, first: float, last: float) -> tuple[Frame, float] | None:
    """The line of the program's own for which most of the growth goes, and its share of the newer samples; None without one.

    Args:
        seen: samples of the training thread while steps grew.
        first: seconds of a step then.
        last: seconds of a step now.

    Time per step is share times length: what is constant takes a smaller share of longer steps.
    """
    middle = len(seen.sights) // 2
    older, newer = Profile(seen.sights[:middle], seen.seconds), Profile(seen.sights[middle:], seen.seconds)
    best: tuple[float, Frame, float] | None = None
    for frame in newer.busiest(MOST_LINES):
        before, now = _share(older, frame), _share(newer, frame)
        grown = now * last - before * first
        if now > before and grown >= CARRIED * (last - first) and (best is None or grown > best[0]):
            best = (grown, frame, now)
    return best[1:] if best else None


def _share(seen: Profile, frame: Frame) -> float:
    return seen.share_where(lambda stack: _function(user_frame(stack)) == _function(frame))


def _function(frame: Frame | None) -> tuple[str, str] | None:
    return None if frame is None else (short_name(frame.function), frame.file)
