"""How often the cards are looked at follows from what a look takes."""

import pytest

from perfwatch.probes.nvml_process import CALM_BUDGET, FULL_BUDGET, LONGEST_PAUSE_SECONDS, PERIOD_SECONDS, Budget


@pytest.mark.parametrize(("full", "share"), [(False, CALM_BUDGET), (True, FULL_BUDGET)])
@pytest.mark.parametrize("dear", [0.02, 0.08, 0.5])
def test_a_dear_look_is_paid_for_by_the_pauses_after_it(full: bool, share: float, dear: float) -> None:
    """One in thirty is dear, and no pause is longer than a card may go unread."""
    budget = Budget()
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

    assert pauses == {LONGEST_PAUSE_SECONDS}
    assert budget.pause(0.001, full=True) == PERIOD_SECONDS
