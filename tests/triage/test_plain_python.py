"""A model, or an optimizer, whose time goes into plain Python: training by its frames, and not surely healthy."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training

CALLS = Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1789)
CUTS = tuple((Frame("forward", TRAIN, line), CALLS, Frame("train", TRAIN, 12)) for line in (30, 31))


@pytest.mark.parametrize(
    ("calls", "loops", "owns_gil", "confidence"),
    [
        (("ord",), ("for",), None, 0.65),
        (("ord",), ("for",), True, 0.65),
        (("ord",), ("for",), False, 0.95),  # operators on tensors
        (("torch.tanh",), ("for",), None, 0.95),
        (("ord",), (), None, 0.95),  # no loop is known: one line of arithmetic
    ],
)
def test_a_forward_pass_in_loops_of_builtins_is_healthy_less_surely(
    calls: tuple[str, ...], loops: tuple[str, ...], owns_gil: bool | None, confidence: float
) -> None:
    """Texts that are cut into tokens within the model: few dumps say who has the GIL, but the text of the lines is known."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", calls=calls, loops=loops))

    verdict = job.goes_on(22.0, [*CUTS, FORWARD, BACKWARD, *CUTS, OPTIMIZER], owns_gil=owns_gil).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("plain Python, at forward (train.py:3" in verdict.summary) is (confidence == 0.65)


FETCH = (
    Frame("__getitem__", TRAIN, 44),
    Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    Frame("train", TRAIN, 12),
)


@pytest.mark.parametrize(("stacks_beside", "confidence"), [(8, 0.65), (23, 0.95)])
def test_making_batches_that_nearly_costs_a_verdict_is_told_beside_a_healthy_one(
    stacks_beside: int, confidence: float
) -> None:
    """An eighth of the time, or a twenty-fifth: less than what a cause of its own needs."""
    steps = [FORWARD, BACKWARD, OPTIMIZER] * 8
    verdict = Training(card=False).goes_on(25.0, [FETCH, *steps[:stacks_beside]]).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("makes batches in the training thread" in verdict.summary) is (confidence == 0.65)


@pytest.mark.parametrize(("hooks", "confidence"), [(7, 0.65), (1, 0.95)])
def test_a_training_that_is_mostly_in_hooks_is_healthy_less_surely(hooks: int, confidence: float) -> None:
    """They compute with tensors, as a training does, and look at it only; with every validation there may be more of them."""
    inner = Frame("Module._call_impl.<locals>.inner", f"{TORCH}/nn/modules/module.py", 1845)
    hook = (Frame("Report.make_hook.<locals>.hook", TRAIN, 51), inner, Frame("train", TRAIN, 12))

    verdict = (
        Training(card=False).goes_on(22.0, [*[hook] * hooks, FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER]).verdict()
    )

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("hooks, mostly at" in verdict.summary) is (confidence < 0.9)
