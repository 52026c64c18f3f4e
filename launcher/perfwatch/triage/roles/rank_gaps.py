"""The ranks of a job that were not seen, as ranges: a job may say that it has a million."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from perfwatch_probes.bounds import MOST_RANKS


class RankGaps(Collection[int]):
    """The ranks from 0 to a world size that are not among those seen, in order.

    Attributes:
        runs: consecutive ranks, as ranges. Counting and printing them costs as much as the ranks that were seen.
    """

    def __init__(self, seen: Iterable[int | None], size: int | None) -> None:
        end = min(size or 0, MOST_RANKS)
        runs, start = [], 0
        for rank in sorted({one for one in seen if one is not None and 0 <= one < end}):
            runs.append(range(start, rank))
            start = rank + 1
        runs.append(range(start, end))
        self.runs = tuple(run for run in runs if run)

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[int]:
        """One after the other."""
        return chain.from_iterable(self.runs)

    def __contains__(self, rank: object) -> bool:
        """True if that rank was not seen."""
        return any(rank in run for run in self.runs)


def rank_ranges(ranks: Iterable[int]) -> str:
    """``0-126,128-511``: each rank once, in order; empty for none."""
    runs = ranks.runs if isinstance(ranks, RankGaps) else _runs(ranks)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _runs(ranks: Iterable[int]) -> list[range]:
    runs: list[range] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1].stop:
            runs[-1] = range(runs[-1].start, rank + 1)
        else:
            runs.append(range(rank, rank + 1))
    return runs
