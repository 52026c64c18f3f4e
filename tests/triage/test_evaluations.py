"""An optimizer that asks for gradients itself: what it evaluates within one step is progress, and no slower step than before."""

import pytest

from perfwatch.triage.moving.progress import evaluates
from perfwatch.triage.rules import regressed, skipping_steps
from perfwatch_probes.readings import Frame, SourceLine
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


ONE_EACH = [FORWARD, PASS]  # Lightning: the pass of each step is one that the optimizer asked for


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([FORWARD, BACKWARD, OPTIMIZER], [STEP, PASS], False),
        ([FORWARD, BACKWARD, OPTIMIZER], [FORWARD, BACKWARD, OPTIMIZER], True),
        (ONE_EACH, ONE_EACH, True),
    ],
)
def test_steps_of_many_evaluations_are_no_slower_ones(
    before: list[tuple[Frame, ...]], now: list[tuple[Frame, ...]], told: bool
) -> None:
    """Step times of one and the same optimizer are, be its passes asked for by it."""
    job = Training(card=False)
    for second in range(30):
        job.goes_on(1.0, before).steps(20 * (second + 1), *[0.05] * 20)
    length = 4.0 if now == [STEP, PASS] else 1.0
    for step in range(40):
        job.goes_on(length, now).steps(601 + step, length)

    assert (regressed.judge(job.case()) is not None) is told


def test_passes_before_the_last_step_do_not_let_a_late_one_go_on() -> None:
    """Each step of Lightning holds one; now the program turns elsewhere, and nothing is evaluated."""
    job = Training(card=False)
    for second in range(20):
        job.goes_on(1.0, ONE_EACH).steps(2 * (second + 1), 0.5, 0.5)
    for second in range(6):
        job.goes_on(1.0, [FORWARD, OWN_STEP[1:]]).steps(40, ago=second + 1.0)
    (rank,) = job.case().ranks

    assert job.case().progress[rank.pid].kind != "moving"


MEASURE = "/app/measure.py"
READS = (Frame("measure", MEASURE, 42), Frame("on_step", MEASURE, 30), Frame("fit", TRAIN, 20))
RUNS = (FORWARD[0], Frame("measure", MEASURE, 44), *READS[1:])
NO_GRAD = Frame("decorate_context", f"{TORCH}/utils/_contextlib.py", 124)


def decorated(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The same, in a function that ``torch.no_grad`` decorates."""
    return (*stack[:-2], NO_GRAD, *stack[-2:])


@pytest.mark.parametrize(("off", "told"), [("decorated", True), ("block", True), ("", False)])
def test_a_model_that_is_seldom_met_evaluates_where_gradients_are_off_all_the_while(off: str, told: bool) -> None:
    """It waits for the card nine times in ten; without a word about gradients a backward pass may as well have been missed."""
    job = Training()
    if off == "block":
        for line in (42, 44):
            job.add(SourceLine(file=MEASURE, line=line, text="", loops=("for",), within=("torch.no_grad()",)))
    else:
        job.add(SourceLine(file=MEASURE, line=42, text="ids = text[at].to(device)", loops=("for",)))
    stacks = [decorated(stack) if off == "decorated" else stack for stack in [READS] * 9 + [RUNS]]
    job.goes_on(10.0, stacks, load="bf16_matmul")

    assert ((job.verdict().state, job.verdict().cause) == ("busy", "evaluating")) is told
