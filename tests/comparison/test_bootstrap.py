"""Intervals: they cover what they say, and abstain where they cannot."""

import random
from collections.abc import Callable
from itertools import accumulate

import pytest

from perfwatch.comparison.bootstrap import (
    Blocks,
    Windows,
    change_of_quantile,
    change_of_rate,
    difference_of_ratios,
    rate_windows,
)
from tests.comparison.runs import step_times


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_the_interval_covers_the_true_change_as_often_as_it_says(share: float) -> None:
    """Thirty pairs of runs whose steps drift: the same program twice, so the true change is zero."""
    covered = 0
    for seed in range(30):
        a, b = (Blocks(tuple(step_times(600, 0.2, seed=number))) for number in (2 * seed, 2 * seed + 1))
        interval = change_of_quantile(share, a, b)
        assert interval is not None
        covered += interval[0] <= 0.0 <= interval[1]

    assert covered >= 24  # 28 or 29 are expected; fewer than 24 would happen once in ten thousand times


def clock(times: list[float]) -> list[tuple[int, float]]:
    """Steps by number, and when each ended."""
    return list(enumerate(accumulate(times, initial=0.0)))


def bursts(count: int, seed: int) -> list[float]:
    """Seven fast steps from a full queue, then one that waits until it is full again; now and then a checkpoint."""
    chance = random.Random(seed)
    return [
        (0.02 if step % 8 else 1.5) * chance.uniform(0.7, 1.3) + 4.0 * (chance.random() < 0.01) for step in range(count)
    ]


@pytest.mark.parametrize("made", [bursts, lambda count, seed: step_times(count, 0.2, seed=seed)])
@pytest.mark.parametrize("count", [60, 600])
def test_the_interval_of_a_rate_covers_the_true_change_as_often(
    made: Callable[[int, int], list[float]], count: int
) -> None:
    """Bursts, pauses and a slow drift, in long runs and short ones: the same program twice."""
    covered = 0
    for seed in range(30):
        interval = change_of_rate(*(rate_windows(clock(made(count, number))) for number in (2 * seed, 2 * seed + 1)))
        assert interval is not None
        covered += interval[0] <= 0.0 <= interval[1]

    assert covered >= 24


def test_a_rate_that_was_read_seldom_is_not_taken_for_even() -> None:
    """Of a fast loop each reading tells the newest steps alone: a window begins and ends where a step is known."""
    seldom = [(step, at) for step, at in clock([0.01] * 1000) if step % 250 == 0]

    assert len(rate_windows(seldom).parts) == 4
    assert rate_windows(seldom).value == pytest.approx(100.0)
    assert change_of_rate(rate_windows(seldom), rate_windows(clock([0.01] * 1000))) is None


def test_the_same_question_has_the_same_answer() -> None:
    """A gate that says something else each time is none."""
    a, b = Blocks(tuple(step_times(300, 0.2))), Blocks(tuple(step_times(300, 0.21, seed=1)))

    assert change_of_quantile(0.5, a, b) == change_of_quantile(0.5, a, b)


def test_a_real_change_is_outside_of_it() -> None:
    """A tenth slower, over as many steps as two minutes have."""
    interval = change_of_quantile(
        0.5, Blocks(tuple(step_times(600, 0.2))), Blocks(tuple(step_times(600, 0.22, seed=1)))
    )

    assert interval is not None
    assert 0.05 < interval[0] < 0.1 < interval[1] < 0.15


@pytest.mark.parametrize(
    ("count", "share", "tells"),
    [(29, 0.5, False), (30, 0.5, True), (99, 0.95, False), (100, 0.95, True), (499, 0.99, False), (500, 0.99, True)],
)
def test_too_few_steps_tell_nothing(count: int, share: float, tells: bool) -> None:
    """The 99th percentile of a hundred steps is one step's luck."""
    run = Blocks(tuple(step_times(count, 0.2)))

    assert (change_of_quantile(share, run, run) is not None) == tells


def test_very_many_steps_are_no_trouble() -> None:
    """A week of them: values are looked for on a grid, which must not move the answer."""
    chance = random.Random(1)
    a = tuple(chance.uniform(0.9, 1.1) for _ in range(200_000))
    interval = change_of_quantile(0.5, Blocks(a), Blocks(tuple(1.01 * value for value in a)))

    assert interval is not None
    assert interval[0] < 0.01 < interval[1]
    assert interval[1] - interval[0] < 0.01


def test_shares_are_compared_window_by_window() -> None:
    """A tenth of the time against three tenths; and a few windows alone say nothing."""
    chance = random.Random(1)
    little, much = (Windows(tuple((chance.gauss(share, 0.02), 1.0) for _ in range(20))) for share in (0.1, 0.3))
    interval = difference_of_ratios(little, much)

    assert interval is not None
    assert 0.15 < interval[0] < 0.2 < interval[1] < 0.25
    assert difference_of_ratios(Windows(little.parts[:5]), much) is None
