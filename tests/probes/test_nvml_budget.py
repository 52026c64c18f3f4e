"""How often the cards are looked at follows from what a look takes."""

import pytest

from perfwatch_probes.nvml_process import CALM_BUDGET, FULL_BUDGET, LONGEST_PAUSE_SECONDS, PERIOD_SECONDS, Budget


@pytest.mark.parametrize(("full", "share"), [(False, CALM_BUDGET), (True, FULL_BUDGET)])
@pytest.mark.parametrize("dear", [0.02, 0.08, 0.5])
def test_a_dear_look_is_paid_for_by_the_pauses_after_it(full: bool, share: float, dear: float) -> None:
    """One in thirty is dear, and no pause is longer than a card may go unread."""
    budget = Budget()
    budget.pause(0.0, full)
    looks = [dear if number % 30 == 0 else 0.004 for number in range(300)]
    pauses = [budget.pause(one, full) for one in looks]

    assert max(pauses) <= LONGEST_PAUSE_SECONDS
    assert min(pauses) >= PERIOD_SECONDS
    assert sum(looks) / (sum(looks) + sum(pauses)) <= share


def test_looks_that_no_pause_pays_for_come_at_the_longest() -> None:
    """That is said of the probe; a job that becomes suspect is looked at as if nothing was owed."""
    budget = Budget()
    pauses = {budget.pause(0.1, full=False) for _ in range(100)}
    budget.forgive()

    assert pauses == {PERIOD_SECONDS, LONGEST_PAUSE_SECONDS}
    assert budget.pause(0.001, full=True) == PERIOD_SECONDS


@pytest.mark.parametrize("full", [False, True])
def test_after_the_first_look_the_second_one_is_not_put_off(full: bool) -> None:
    """It asks for everything (76 ms of CPU for two cards, measured), and only the second one tells what a card does."""
    budget = Budget()

    assert budget.pause(0.076, full) == PERIOD_SECONDS
    assert budget.pause(0.076, full) > PERIOD_SECONDS
    budget.forgive()
    assert budget.pause(0.076, full) == PERIOD_SECONDS
