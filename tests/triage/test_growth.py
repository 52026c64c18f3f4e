"""Steps that grow are told from steps that shift once, and from those of every length."""

import random

from perfwatch.triage.moving.growth import change_point, growing
from perfwatch.triage.rules import regressed
from tests.training import BACKWARD, FORWARD, OPTIMIZER, Training


def test_steps_that_grow_are_told_by_their_first_and_last_eighth() -> None:
    """From a tenth of a second to three tenths."""
    first, last = growing([0.1 + 0.002 * step for step in range(100)]) or (0.0, 0.0)

    assert 0.1 <= first <= 0.12
    assert 0.28 <= last <= 0.3


def test_a_shift_and_a_mixture_are_no_growth() -> None:
    """Nor are too few steps."""
    mixed = random.Random(3)

    assert growing([0.1] * 50 + [0.3] * 50) is None
    assert growing([mixed.uniform(0.1, 0.3) for _ in range(200)]) is None
    assert growing([0.1 + 0.002 * step for step in range(40)]) is None


def test_what_comes_back_is_no_lasting_shift() -> None:
    """Batches sorted by length grow within each epoch, and the next one begins with short ones again."""
    epoch = tuple(0.05 * 1.02**step for step in range(80))
    once = (0.05,) * 60 + (0.15,) * 120

    assert change_point(once) is not None
    assert change_point(epoch[:20] + epoch * 3) is None
    assert change_point(once + (0.05,) * 24) is None


def test_a_shift_is_one_on_a_machine_with_neighbours_too() -> None:
    """Now and then a dozen steps pass as quickly as before, or as slowly as after: measured in a run beside thirty others."""
    quick, slow = (0.0065,) * 12, (0.014,) * 12
    before, after = quick * 12 + slow + quick * 16, slow * 40 + quick + slow * 40
    back = quick * 6

    assert change_point(before + after) is not None
    assert change_point(before + after + back) is None


def test_brief_steps_of_which_only_some_are_listed_have_lasted_as_long_as_was_counted() -> None:
    """Four hundred a second for six seconds, of which a look lists 64; then they take twice as long."""
    job = Training(card=False)
    for second in range(26):
        length = 0.0025 if second < 6 else 0.005
        made = 400 * (second + 1) if second < 6 else 2400 + 200 * (second - 5)
        job.goes_on(1.0, [FORWARD, BACKWARD, OPTIMIZER]).steps(made, *[length] * 64)
    verdict = job.verdict()

    assert regressed.judge(job.case()) is not None
    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "2.00 times as long" in verdict.summary
