"""How certain a difference between two runs is: a block bootstrap with a fixed seed, so that the result can be repeated.

Neighbouring steps are alike (the same epoch, the same neighbour on the machine), so single steps must not be drawn as if
they were independent: whole blocks of them are, in the order of time (Carlstein 1986; Efron and Tibshirani 1993, ch. 8).
A mean moves with every slow drift and every pause, so a rate has few, long blocks, and its interval is widened for being
of few (Hesterberg 2015, "expanded percentile").
No single pair of runs can show how much the same program differs from one start to the next.
"""

import bisect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from perfwatch.triage.history import quantile

SEED = 1
DRAWS = 1000
COVERS = 0.95
MOST_BLOCKS = 40
SHORTEST_BLOCK = 5  # steps
FEWEST_BLOCKS = 6  # of steps, or windows of time: fewer say nothing about how much they differ
FEWEST_BEYOND = 5  # steps beyond a quantile: with fewer, the quantile is one step's luck
MOST_RATE_BLOCKS = 10
EXPANDED_TAIL = {
    6: 0.0024,
    7: 0.0041,
    8: 0.0057,
    9: 0.0072,
    10: 0.0086,
}  # by blocks: normal tail beyond sqrt(n / (n - 1)) t(0.975)
MOST_GRID = 2048  # values among which a drawn quantile is looked for

Interval = tuple[float, float]


@dataclass(frozen=True)
class Blocks:
    """The values of one run in the order of time, cut into blocks that are drawn as a whole."""

    values: tuple[float, ...]
    _grid: tuple[float, ...] = field(init=False)
    _below: tuple[tuple[int, ...], ...] = field(init=False)  # by block: how many of its values are at most grid[i]
    _sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(set(self.values))
        every = max(1, -(-len(ordered) // MOST_GRID))
        grid = [*ordered[:-1:every], *ordered[-1:]]
        parts = [sorted(part) for part in _cut(self.values)]
        object.__setattr__(self, "_grid", tuple(grid))
        object.__setattr__(self, "_sizes", tuple(len(part) for part in parts))
        below = tuple(tuple(bisect.bisect_right(part, value) for value in grid) for part in parts)
        object.__setattr__(self, "_below", below)

    def suffices(self, share: float) -> bool:
        """True if an interval around this quantile would mean something."""
        return len(self._sizes) >= FEWEST_BLOCKS and len(self.values) * min(share, 1.0 - share) >= FEWEST_BEYOND

    def drawn(self, share: float, chance: random.Random) -> float:
        """The quantile of as many blocks as there are, drawn with replacement."""
        draw = chance.choices(range(len(self._sizes)), k=len(self._sizes))
        wanted = share * sum(self._sizes[block] for block in draw)
        chosen = [self._below[block] for block in draw]
        low, high = 0, len(self._grid) - 1
        while low < high:
            middle = (low + high) // 2
            if sum(below[middle] for below in chosen) >= wanted:
                high = middle
            else:
                low = middle + 1
        return self._grid[low]


@dataclass(frozen=True)
class Windows:
    """A ratio that was measured window after window: (numerator, denominator) of each window in which anything was seen."""

    parts: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float | None:
        """The ratio over all windows; None where nothing was seen."""
        return _ratio(self.parts)

    def drawn(self, chance: random.Random) -> float:
        """The ratio of as many windows as there are, drawn with replacement."""
        return _ratio(chance.choices(self.parts, k=len(self.parts))) or 0.0

    @property
    def suffices(self) -> bool:
        """True if an interval around it would mean something."""
        return len(self.parts) >= FEWEST_BLOCKS


def rate_windows(clock: Sequence[tuple[int, float]]) -> Windows:
    """Steps a second: windows of about equally many steps, each with the seconds that it took. They begin and end with known steps.

    Args:
        clock: steps by number and when each ended (seconds), in their order.
    """
    if len(clock) < 2:
        return Windows(())
    first, steps = clock[0][0], clock[-1][0] - clock[0][0]
    count = max(1, min(MOST_RATE_BLOCKS, steps // SHORTEST_BLOCK))
    places = (bisect.bisect_left(clock, (first + steps * block // count,)) for block in range(count + 1))
    edges = [clock[place] for place in dict.fromkeys(places)]
    return Windows(tuple((late - early, end - begin) for (early, begin), (late, end) in pairwise(edges)))


def change_of_rate(a: Windows, b: Windows) -> Interval | None:
    """By what share of A the rate of B is higher: 95 % interval; None where either run is too short to tell."""
    if not a.suffices or not b.suffices:
        return None
    chance = random.Random(SEED)
    return _middle(lambda: b.drawn(chance) / a.drawn(chance) - 1.0, EXPANDED_TAIL[min(len(a.parts), len(b.parts))])


def interval_of_rate(run: Windows) -> Interval | None:
    """95 % interval of one run's rate; None where it is too short to tell."""
    chance = random.Random(SEED)
    return _middle(lambda: run.drawn(chance), EXPANDED_TAIL[len(run.parts)]) if run.suffices else None


def change_of_quantile(share: float, a: Blocks, b: Blocks) -> Interval | None:
    """By what share of A the quantile of B is larger: 95 % interval; None where either run is too short to tell."""
    if not a.suffices(share) or not b.suffices(share):
        return None
    chance = random.Random(SEED)
    return _middle(lambda: b.drawn(share, chance) / a.drawn(share, chance) - 1.0)


def interval_of_quantile(share: float, run: Blocks) -> Interval | None:
    """95 % interval of one run's quantile; None where it is too short to tell."""
    chance = random.Random(SEED)
    return _middle(lambda: run.drawn(share, chance)) if run.suffices(share) else None


def difference_of_ratios(a: Windows, b: Windows) -> Interval | None:
    """B minus A: 95 % interval; None where either was seen too seldom to tell."""
    if not a.suffices or not b.suffices:
        return None
    chance = random.Random(SEED)
    return _middle(lambda: b.drawn(chance) - a.drawn(chance))


def _middle(draw: Callable[[], float], tail: float = (1.0 - COVERS) / 2) -> Interval:
    drawn = [draw() for _ in range(DRAWS)]
    return quantile(drawn, tail) or 0.0, quantile(drawn, 1.0 - tail) or 0.0


def _cut(values: Sequence[float]) -> list[Sequence[float]]:
    """Even blocks, as many as there may be, none shorter than the shortest."""
    count = max(1, min(MOST_BLOCKS, len(values) // SHORTEST_BLOCK))
    edges = [len(values) * block // count for block in range(count + 1)]
    return [values[first:last] for first, last in pairwise(edges) if last > first]


def _ratio(parts: Sequence[tuple[float, float]]) -> float | None:
    below = sum(part[1] for part in parts)
    return sum(part[0] for part in parts) / below if below > 0.0 else None
