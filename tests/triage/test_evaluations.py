"""An optimizer that asks for gradients itself: what it evaluates within one step is progress, and no slower step than before."""

import pytest

from perfwatch.probes.readings import Frame
from perfwatch.triage.moving.progress import evaluates
from perfwatch.triage.rules import regressed, skipping_steps
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training

STEP = (Frame("step", f"{TORCH}/optim/lbfgs.py", 434), Frame("train", TRAIN, 22))
PASS = (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 869), Frame("closure", TRAIN, 18), *STEP)
OWN_STEP = (*PASS[:2], Frame("step", "/app/own_optimizer.py", 30), Frame("train", TRAIN, 22))


def adam_first(seconds: int = 20) -> Training:
    """Twenty steps a second, for a while."""
    job = Training(card=False)
    for second in range(seconds):
        job.goes_on(1.0, [FORWARD, BACKWARD, OPTIMIZER]).steps(20 * (second + 1), *[0.05] * 20)
    return job


@pytest.mark.parametrize(("stack", "counts"), [(PASS, True), (STEP, False), (BACKWARD, False), (OWN_STEP, False)])
def test_only_a_pass_that_an_optimizer_of_torch_asked_for_is_an_evaluation(
    stack: tuple[Frame, ...], counts: bool
) -> None:
    """It ends its step after as many as it was told; one of the program's own may go on for ever."""
    job = Training(card=False).goes_on(1.0, [stack])

    assert job.case().profile(job.case().ranks[0]).share_where(evaluates) == (1.0 if counts else 0.0)


def test_a_step_of_many_evaluations_goes_on_and_skips_nothing() -> None:
    """Half a minute without a step that is counted, after steps of a twentieth of a second."""
    job = adam_first()
    for second in range(30):
        job.goes_on(1.0, [STEP, PASS]).steps(400, ago=second + 1.0)

    assert (job.verdict().state, job.verdict().cause) == ("healthy", "cpu_training")
    assert "each 0.05" not in job.verdict().summary
    assert skipping_steps.judge(job.case()) is None


def test_such_steps_are_no_slower_ones() -> None:
    """The same step times of one and the same optimizer are."""
    for stacks, told in (([STEP, PASS], False), ([FORWARD, BACKWARD, OPTIMIZER], True)):
        job = adam_first(30)
        for step in range(40):
            job.goes_on(1.0, stacks).steps(601 + step, 1.0)

        assert (regressed.judge(job.case()) is not None) is told
