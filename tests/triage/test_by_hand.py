"""A loop that trains without autograd and without an optimizer of torch's looks like a search that does not converge."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TRAIN, Training

FIT = [(Frame("fit", TRAIN, line),) for line in (31, 32, 33)]


def turned(update: str, *, trained: bool = False) -> Verdict:
    """What is said of a loop that turned for more than six minutes, and has this among its lines."""
    job = Training(card=False)
    for line, text in ((31, "error = x @ w - y"), (32, update), (33, "rounds += 1")):
        job.add(SourceLine(file=TRAIN, line=line, text=text, loops=("while",), loop_calls=("error.square",)))
    if trained:
        job.goes_on(20.0, [FORWARD, BACKWARD, OPTIMIZER])
    return job.goes_on(400.0, FIT).verdict()


@pytest.mark.parametrize("update", ["w -= rate * (x.T @ error)", "self.w.sub_(rate * g)", "w.add_(g, alpha=-rate)"])
def test_a_loop_that_takes_something_down_a_gradient_may_be_training(update: str) -> None:
    """Or it searches and never finds: that it turns for ever is said less surely than of other loops."""
    said = turned(update)

    assert (said.cause, said.confidence) == ("endless_python", 0.65)


def test_a_program_that_trains_with_an_optimizer_does_not_descend_by_hand() -> None:
    """There a line of that form is arithmetic as any other."""
    said = turned("w -= rate * (x.T @ error)", trained=True)

    assert said.cause == "endless_python"


@pytest.mark.parametrize("update", ["left -= 1", "w = w * 2", "rounds += 1"])
def test_a_loop_that_counts_down_or_computes_is_endless(update: str) -> None:
    """It is no descent."""
    said = turned(update)

    assert said.cause == "endless_python"
