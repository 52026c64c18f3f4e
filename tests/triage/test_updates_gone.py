"""Updates that are made no more: gradients that are cleared and not made, updates that were met before, looks at gradients."""

import pytest

from perfwatch.triage.rules import skipping_steps
from perfwatch.triage.shares.updating import beside_a_step
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, SourceLine, Steps
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training

CLEARS = (Frame("Optimizer.zero_grad", f"{TORCH}/optim/optimizer.py", 1057), Frame("train", TRAIN, 16))
MODEL = (FORWARD, (Frame("forward", f"{TORCH}/nn/modules/activation.py", 100), Frame("train", TRAIN, 12)))
OTHER = tuple((*stack[:1], Frame("train", TRAIN, line)) for stack, line in zip(MODEL, (17, 18), strict=True))
LOOP = ("model", "optimizer.zero_grad", "loss.backward", "optimizer.step")


def training(calls: tuple[str, ...]) -> Training:
    """A program whose loop makes these calls."""
    job = Training(card=False)
    for line in (12, 13, 16, 17, 18):
        job.add(SourceLine(file=TRAIN, line=line, text="loss = model(x)", loop_calls=calls, loops=("for",)))
    return job


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ((*LOOP, "torch.isfinite"), ("slow", "skipping_steps", 0.78)),
        (LOOP, ("slow", "skipping_steps", 0.7)),  # it compares the loss with itself, say
        ((*LOOP, "torch.set_grad_enabled"), ("busy", "evaluating", 0.65)),  # one loop for both phases
        (("model", "optimizer.zero_grad"), ("busy", "evaluating", 0.65)),  # nobody knows who makes the steps
    ],
)
def test_gradients_that_are_cleared_and_not_made_are_no_sure_evaluation(
    calls: tuple[str, ...], said: tuple[str, str, float]
) -> None:
    """To clear gradients is no update: forward passes alone are seen beside it."""
    verdict = training(calls).goes_on(20.0, [*MODEL, *OTHER, CLEARS]).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == said


@pytest.mark.parametrize(
    ("callers", "block", "told"),
    [
        ((Frame("main", TRAIN, 40),), "torch.autocast('cpu')", True),
        ((Frame("main", TRAIN, 40),), "torch.inference_mode()", False),
        ((Frame("decorate_context", f"{TORCH}/utils/_contextlib.py", 124), Frame("main", TRAIN, 40)), "", False),
    ],
)
def test_one_function_for_both_phases_evaluates_where_its_caller_switches_gradients_off(
    callers: tuple[Frame, ...], block: str, told: bool
) -> None:
    """By its text the loop trains, clears gradients and tests for what is finite; who calls it says that it does not now."""
    job = training((*LOOP, "torch.isfinite"))
    job.add(SourceLine(file=TRAIN, line=40, text="run()", calls=("run",), within=(block,) if block else ()))
    case = job.goes_on(20.0, [(*stack, *callers) for stack in (*MODEL, *OTHER, CLEARS)]).case()

    assert isinstance(skipping_steps.judge(case), Finding) is told


@pytest.mark.parametrize(("caller", "passes_if", "told"), [(40, (), True), (41, (), False), (40, ("flag",), False)])
def test_a_function_that_trains_evaluates_for_another_caller_or_by_a_flag(
    caller: int, passes_if: tuple[str, ...], told: bool
) -> None:
    """With gradients left on, as far as anybody can see: it clears them and tests its loss all the same."""
    job = training(LOOP)
    calls = (*LOOP, "torch.isfinite")
    for line in (12, 17, 18):
        job.add(SourceLine(file=TRAIN, line=line, text="", loop_calls=calls, loops=("for",), passes_if=passes_if))
    for second in range(20):
        trained = [(*stack, Frame("main", TRAIN, 40)) for stack in (*MODEL, *OTHER, BACKWARD, OPTIMIZER)]
        job.goes_on(3.0, trained).steps(2 * second + 1, 1.5, 1.5)
    for second in range(20):
        job.goes_on(2.0, [(*stack, Frame("main", TRAIN, caller)) for stack in (*MODEL, *OTHER)]).steps(
            39, ago=2.0 * (second + 1)
        )

    assert isinstance(skipping_steps.judge(job.case()), Finding) is told


@pytest.mark.parametrize(("seconds", "told"), [(50, False), (80, True)])
def test_where_no_step_was_ever_counted_passes_tell_for_how_long_there_is_none(seconds: int, told: bool) -> None:
    """The first step of a run may take a minute."""
    job = training((*LOOP, "torch.isfinite"))
    for _ in range(seconds):
        job.goes_on(1.0, [*MODEL]).add(Steps(pid=PID, tid=PID, count=0))

    assert isinstance(skipping_steps.judge(job.case()), Finding) is told


BY_FIT, BY_ANOTHER = (
    (BACKWARD[0], Frame("gradients", TRAIN, 8), Frame(name, TRAIN, line))
    for name, line in (("fit", 13), ("importance", 44))
)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([FORWARD, BACKWARD, OPTIMIZER], [FORWARD, BACKWARD], True),
        ([FORWARD, BACKWARD], [FORWARD, BACKWARD], False),  # never met: updates may be brief
        ([FORWARD, *[BACKWARD] * 40, OPTIMIZER], [FORWARD, BACKWARD], False),  # gradients are accumulated
        ([FORWARD, BACKWARD, OPTIMIZER], [FORWARD, (*BACKWARD[:1], Frame("attack", TRAIN, 40))], False),
        ([FORWARD, BY_FIT, OPTIMIZER], [FORWARD, BY_FIT], True),
        ([FORWARD, BY_FIT, OPTIMIZER], [FORWARD, BY_ANOTHER], False),
    ],
)
def test_updates_that_were_met_among_the_passes_and_are_no_more_are_skipped(
    before: list[tuple[Frame, ...]], now: list[tuple[Frame, ...]], told: bool
) -> None:
    """Without a count, and where nothing that goes with a step is seen."""
    found = skipping_steps.judge(Training(card=False).goes_on(126.0, before).goes_on(22.0, now).case())

    assert isinstance(found, Finding) is told


@pytest.mark.parametrize(
    ("text", "calls", "samples"),
    [
        ("if not torch.isfinite(p.grad).all():", ("torch.isfinite", "all"), 12.5),
        ("norms = [p.grad.norm() for p in parameters]", ("p.grad.norm",), 12.5),
        ("p -= rate * p.grad", (), 0),  # an update of its own
        ("if not torch.isfinite(loss):", ("torch.isfinite",), 0),
    ],
)
def test_a_look_at_gradients_goes_with_a_step(text: str, calls: tuple[str, ...], samples: float) -> None:
    """It touches each gradient once, as a clipping does, and may cost more than a step."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=15, text=text, calls=calls, loop_calls=(*LOOP, *calls), loops=("for",)))
    case = job.goes_on(20.0, [FORWARD, BACKWARD, (Frame("train", TRAIN, 15),), FORWARD]).case()

    assert beside_a_step(case.history, case.profile(case.ranks[0], 20.0)) == samples
