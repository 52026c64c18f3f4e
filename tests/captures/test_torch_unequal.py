"""Ranks that recorded more steps than they were asked for: said where their traces are not alike for it."""

import pytest

from perfwatch.captures.torch_profiler import unequal
from perfwatch_probes.readings import TorchTrace


def traces(*steps: int) -> list[TorchTrace]:
    """One of each rank."""
    return [TorchTrace(pid=100 + rank, rank=rank, window_seconds=1.0, steps=count) for rank, count in enumerate(steps)]


def test_ranks_whose_windows_ended_late_are_told() -> None:
    """Seen on two cores: the thread that ends a window came 5 steps late in one rank, 16 in the other."""
    (note,) = unequal(traces(10, 21), 5)

    assert note.startswith("the ranks recorded 10 to 21 steps, not 5:")


@pytest.mark.parametrize(("steps", "asked"), [((5, 5), 5), ((6, 6), 5), ((7,), 5), ((10, 21), None), ((4, 5), 5)])
def test_nothing_is_said_where_traces_are_alike(steps: tuple[int, ...], asked: int | None) -> None:
    """As many in each, one rank alone, a window of time; too few is another matter."""
    assert unequal(traces(*steps), asked) == []
