"""Optimizer steps: what counts as one, and which backward passes should have made one."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training, level, level_in

SKIPS = "skipping_steps"
# How sure that is: counted, sampled, and where it was not seen how steps were made before; a note is a suspicion, or stands beside.
COUNTED, SAMPLED, UNTOLD, NOTED = "certain", "high", "medium", "low"


def sure(verdict: Verdict) -> str | None:
    """How sure it is that steps are skipped; None where that is not even noted. Only a sure finding is the verdict."""
    found = level_in(verdict, SKIPS)
    assert (verdict.cause == SKIPS) is (found not in (None, NOTED))
    return found


LOOP = ("loader", "net", "loss.backward", "clip_grad_norm_")
ATTACK = (Frame("grad", f"{TORCH}/autograd/__init__.py", 500), Frame("attack", TRAIN, 42))


PASS = (*BACKWARD[:1], Frame("gradients", TRAIN, 8))  # a function that several ask for gradients
TRAINS_BY_IT, FISHER = (*PASS, Frame("train", TRAIN, 13)), (*PASS, Frame("importance", TRAIN, 50))
BY_CLOSURE = (*PASS, Frame("step", f"{TORCH}/optim/adam.py", 227), Frame("train", TRAIN, 13))
BY_SOLVER = (*PASS, Frame("minimize", TRAIN, 60), Frame("train", TRAIN, 18))


@pytest.mark.parametrize(
    ("trained_at", "turns_at", "confidence"),
    [
        (BACKWARD, BACKWARD, COUNTED),  # its guard throws each update away from now on
        (TRAINS_BY_IT, TRAINS_BY_IT, COUNTED),
        (TRAINS_BY_IT, FISHER, NOTED),  # another asks the same line for gradients
        (BY_CLOSURE, BY_SOLVER, NOTED),
        (BACKWARD, ATTACK, NOTED),  # after the epoch: gradients of the input, and no step is due
        (None, BACKWARD, UNTOLD),  # not sampled while steps were made
    ],
)
def test_backward_passes_skip_steps_where_the_same_lines_made_steps_before(
    trained_at: tuple[Frame, ...] | None, turns_at: tuple[Frame, ...], confidence: str
) -> None:
    """A count that stands still beside passes of another kind is no verdict."""
    job = Training(card=False)
    for second in range(20):
        job.goes_on(1.0, [FORWARD, trained_at or OPTIMIZER]).steps(2 * second + 1, 0.5, 0.5)
    for second in range(20):
        job.goes_on(1.0, [FORWARD, turns_at]).steps(39, ago=second + 1.0)

    assert sure(job.verdict()) == confidence


@pytest.mark.parametrize(("made", "seconds"), [(1, 80), (2, 80)])
def test_the_first_steps_of_a_run_may_take_minutes(made: int, seconds: int) -> None:
    """Gradients are accumulated over hundreds of passes: it is not known yet how long a step takes, or only one was seen."""
    job = Training(card=False)
    for number in range(made):
        for second in range(90):
            job.goes_on(1.0, [FORWARD, BACKWARD])
            if number:
                job.steps(number, ago=second + 1.0)
        job.steps(number + 1, *([90.0] if number else []))
    for second in range(seconds):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(made, ago=second + 1.0)

    assert job.verdict().cause != SKIPS


@pytest.mark.parametrize(
    ("steps_if", "beside", "told"),
    [
        (("count",), [], False),  # `if (number + 1) % rounds == 0`: the rounds become longer
        (("finite",), [], True),
        (("count",), [(Frame("unscale_", f"{TORCH}/amp/grad_scaler.py", 340), BACKWARD[1])], True),  # a step was due
    ],
)
def test_a_loop_that_accumulates_may_do_so_for_longer_than_before(
    steps_if: tuple[str, ...], beside: list[tuple[Frame, ...]], told: bool
) -> None:
    """The first long round after a jump makes as many passes as many short ones, and no step."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=13, text="", loops=("for",), loop_calls=(*LOOP, "opt.step"), steps_if=steps_if))
    for second in range(20):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(2 * second + 1, 0.5, 0.5)
    for second in range(20):
        job.goes_on(1.5, [FORWARD, BACKWARD, *(beside or [FORWARD])]).steps(39, ago=1.5 * (second + 1))

    assert (sure(job.verdict()) is not None) is told


def test_a_loop_beside_which_nothing_of_a_step_is_seen_is_given_longer() -> None:
    """A wrapper may accumulate gradients, which the text does not show."""
    job = Training(card=False)
    for second in range(40):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(second + 1, 1.0)
    for second in range(15):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(40, ago=second + 1.0)

    assert sure(job.verdict()) is None


CLIPS = (Frame("clip_grad_norm_", f"{TORCH}/nn/utils/clip_grad.py", 20), Frame("train", TRAIN, 14))
UPDATES_ITSELF = (Frame("train", TRAIN, 15),)
CLEARS = (Frame("zero_grad", f"{TORCH}/optim/optimizer.py", 980), Frame("train", TRAIN, 11))
# torch wraps it in a function without a name of its own.
CLEARS_UNSEEN = (Frame("inner", f"{TORCH}/_compile.py", 54), Frame("train", TRAIN, 11))


@pytest.mark.parametrize(
    ("last", "stepped", "confidence"),
    [
        (UPDATES_ITSELF, None, NOTED),
        (UPDATES_ITSELF, "self.optimizer.step", NOTED),
        (CLEARS, None, SAMPLED),
        (FORWARD, None, NOTED),
        (FORWARD, "scheduler.step", NOTED),
        (FORWARD, "self.optimizer.step", SAMPLED),
        (CLEARS_UNSEEN, "self.optimizer.step", SAMPLED),
    ],
)
def test_without_a_count_only_a_loop_that_has_an_optimizer_of_torch_skips_its_steps(
    last: tuple[Frame, ...], stepped: str | None, confidence: str
) -> None:
    """A loop of `p -= rate * p.grad` clips its gradients as well: an optimizer was seen, or the loop's own text has its step."""
    job = Training(card=False).goes_on(40.0, [FORWARD, BACKWARD, CLIPS, last])
    if stepped is not None:
        job.add(SourceLine(file=TRAIN, line=13, text="loss.backward()", loop_calls=(*LOOP, stepped)))
        job.add(SourceLine(file=TRAIN, line=11, text="optimizer.zero_grad()", calls=("optimizer.zero_grad",)))

    assert sure(job.verdict()) == confidence


MAKES = (
    Frame("__init__", f"{TORCH}/optim/optimizer.py", 360),
    Frame("__init__", f"{TORCH}/optim/sgd.py", 60),
    *UPDATES_ITSELF,
)


# A package is known by its folder and its file, wherever it lies.
ELSEWHERE = (Frame("step", "/opt/layers/torch/optim/rmsprop.py", 90), *UPDATES_ITSELF)


@pytest.mark.parametrize(
    ("last", "confidence"), [(OPTIMIZER, None), (ELSEWHERE, None), (MAKES, SAMPLED), (CLEARS, SAMPLED)]
)
def test_where_the_optimizer_is_made_or_cleared_no_step_is_made(
    last: tuple[Frame, ...], confidence: str | None
) -> None:
    """Making one imports torch._dynamo, which takes seconds: a loop whose scaler skips every step looks well for those."""
    assert sure(Training(card=False).goes_on(40.0, [FORWARD, BACKWARD, CLIPS, last]).verdict()) == confidence


EACH_EXAMPLE = ("zip", "optimizer.zero_grad", "backward", "clip_grad_norm_", "total.add_")


@pytest.mark.parametrize(
    ("loop", "told"),
    [(EACH_EXAMPLE, False), ((*EACH_EXAMPLE, "optimizer.step"), True), (("zip", "clip_grad_norm_"), True)],
)
def test_what_is_done_for_each_example_is_not_done_once_for_each_step(loop: tuple[str, ...], told: bool) -> None:
    """By its text the loop that clips and clears makes passes and no step; a loop over groups of parameters makes neither."""
    job = Training(card=False).goes_on(40.0, [FORWARD, BACKWARD, CLIPS, CLEARS])
    for line in (11, 14):
        job.add(SourceLine(file=TRAIN, line=line, text="", loop_calls=loop, loops=("for",)))

    assert (sure(job.verdict()) is not None) is told


@pytest.mark.parametrize(("load", "told"), [("idle_context", True), ("bf16_matmul", False)])
def test_a_card_that_does_nothing_hides_no_steps(load: str, told: bool) -> None:
    """torch with CUDA opens the card's files for a training on the CPU as well; a card at work gets its steps in an instant."""
    job = Training().goes_on(40.0, [FORWARD, BACKWARD, CLIPS, CLEARS], load=load)

    assert (sure(job.verdict()) is not None) is told


MODEL = tuple(
    (Frame("forward", f"{TORCH}/nn/modules/linear.py", 134), Frame("train", TRAIN, line)) for line in (12, 16)
)
TRAINS = ("model", "torch.isfinite", "loss.backward", "optimizer.step")


@pytest.mark.parametrize(
    ("calls", "within", "said"),
    [
        (TRAINS, (), ("slow", "skipping_steps", "medium")),
        (TRAINS, ("torch.set_grad_enabled",), ("busy", "evaluating", "medium")),  # a flag says what it is this time
        (("model", "loss.backward", "optimizer.step"), (), ("busy", "evaluating", "medium")),
        (("model", "torch.isfinite"), (), ("busy", "evaluating", "high")),  # a loop of its own
    ],
)
def test_a_guard_that_leaves_a_loop_before_backward_is_not_taken_for_an_evaluation(
    calls: tuple[str, ...], within: tuple[str, ...], said: tuple[str, str, str]
) -> None:
    """Forward passes alone are seen: the text of the loop around them tells what it would do besides."""
    job = Training(card=False)
    for line in (12, 16):
        job.add(
            SourceLine(file=TRAIN, line=line, text="loss = model(x)", loop_calls=calls, loops=("for",), within=within)
        )
    verdict = job.goes_on(20.0, MODEL).verdict()

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == said


CLOSURE = (Frame("closure", TRAIN, 30), Frame("step", f"{TORCH}/optim/adam.py", 227), Frame("train", TRAIN, 33))
ASKED = (FORWARD[0], Frame("loss_of", TRAIN, 28), *CLOSURE)
ASKED_TOO = (Frame("forward", f"{TORCH}/nn/modules/activation.py", 100), *ASKED[1:])
PASSED = (BACKWARD[0], *CLOSURE)
ASKED_BY_OWN = (FORWARD[0], CLOSURE[0], Frame("step", "/app/zeroth_order.py", 40), Frame("train", TRAIN, 33))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([ASKED, PASSED], [ASKED], True),
        ([ASKED, PASSED], [ASKED, PASSED], False),  # gradients are made
        ([ASKED], [ASKED], False),  # a model that is frozen but for its head: no backward pass of it was ever seen
        ([ASKED_BY_OWN, PASSED], [ASKED_BY_OWN], False),  # an optimizer of the program's own may need none
        ([FORWARD, BACKWARD], [FORWARD], False),  # no optimizer called it: an evaluation
    ],
)
def test_an_optimizer_that_gets_no_gradients_any_more_makes_no_update(
    before: list[tuple[Frame, ...]], now: list[tuple[Frame, ...]], told: bool
) -> None:
    """Its closure is left before the backward pass, and the count of steps grows all the same."""
    job = Training(card=False)
    for second in range(40):
        job.goes_on(1.0, before if second < 20 else now).steps(20 * (second + 1), *[0.05] * 20)
    verdict = job.verdict()

    assert ((verdict.state, verdict.cause) == ("slow", SKIPS)) is told
    assert ([one.frame for one in verdict.culprits] == ["closure (train.py:30)"]) is told


def test_forward_passes_that_nothing_follows_are_healthy_less_surely_and_that_is_said() -> None:
    """Attached to a run whose model may be frozen, or whose steps are skipped."""
    verdict = Training(card=False).goes_on(20.0, [ASKED, ASKED_TOO, CLOSURE[1:]]).verdict()

    assert (verdict.state, level(verdict.confidence)) == ("healthy", "medium")
    assert "none of a backward pass" in verdict.summary


@pytest.mark.parametrize(("steps_of", "told"), [([FORWARD, BACKWARD], True), ([FORWARD, BACKWARD, OPTIMIZER], False)])
def test_passes_without_an_update_are_healthy_less_surely_and_that_is_said(
    steps_of: list[tuple[Frame, ...]], told: bool
) -> None:
    """Attached to a run whose guard throws each update away, or whose updates are brief: samples alone cannot say which."""
    verdict = Training(card=False).goes_on(20.0, [*steps_of, (*FORWARD[:1], Frame("other", TRAIN, 31))]).verdict()

    assert verdict.state == "healthy"
    assert ("no update was seen" in verdict.summary) is told
    assert (level(verdict.confidence) != "certain") is told
