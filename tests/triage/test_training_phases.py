"""Whether training goes on: it begins, evaluates, collects experience, skips its updates, or waits for data."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.shares.budget import Bin, budget
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, SourceLine, Steps
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training, confidence_in

SEARCH = (Frame("step", f"{TORCH}/optim/lbfgs.py", 434), Frame("train", TRAIN, 22))
PASS = (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 869), Frame("closure", TRAIN, 18), *SEARCH)
OWN_STEP = (*PASS[:2], Frame("step", "/app/own_optimizer.py", 30), Frame("train", TRAIN, 22))


def adam_first(seconds: int = 20) -> Training:
    """Twenty steps a second, for a while."""
    job = Training(card=False)
    for second in range(seconds):
        job.goes_on(1.0, [FORWARD, BACKWARD, OPTIMIZER]).steps(20 * (second + 1), *[0.05] * 20)
    return job


def said(verdict: Verdict) -> tuple[str, str | None]:
    """State and cause."""
    return verdict.state, verdict.cause


@pytest.mark.parametrize(
    ("stack", "state"), [(PASS, "healthy"), (SEARCH, "busy"), (BACKWARD, "slow"), (OWN_STEP, "inconclusive")]
)
def test_only_passes_that_an_optimizer_of_torch_asks_for_are_progress_within_a_step(
    stack: tuple[Frame, ...], state: str
) -> None:
    """Half a minute without a step that is counted, after steps of a twentieth of a second.

    Such an optimizer ends its step after as many passes as it was given; one of the program's own may go on for ever.
    """
    job = adam_first()
    for second in range(30):
        job.goes_on(1.0, [SEARCH, stack]).steps(400, ago=second + 1.0)
    verdict = job.verdict()

    assert verdict.state == state
    assert "each 0.05" not in verdict.summary
    assert (confidence_in(verdict, "skipping_steps") > 0) is (stack in (BACKWARD, OWN_STEP))


ONE_EACH = [FORWARD, PASS]  # Lightning: the pass of each step is one that the optimizer asked for


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([FORWARD, BACKWARD, OPTIMIZER], [SEARCH, PASS], False),
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
    length = 4.0 if now == [SEARCH, PASS] else 1.0
    for step in range(40):
        job.goes_on(length, now).steps(601 + step, length)

    assert (said(job.verdict()) == ("slow", "regressed")) is told


def test_passes_before_the_last_step_do_not_let_a_late_one_go_on() -> None:
    """Each step of Lightning holds one; now the program turns elsewhere, and nothing is evaluated."""
    job = Training(card=False)
    for second in range(20):
        job.goes_on(1.0, ONE_EACH).steps(2 * (second + 1), 0.5, 0.5)
    for second in range(6):
        job.goes_on(1.0, [FORWARD, OWN_STEP[1:]]).steps(40, ago=second + 1.0)
    verdict = job.verdict()

    assert verdict.state == "inconclusive"
    assert confidence_in(verdict, "cpu_training") == 0.0


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

    assert (said(job.verdict()) == ("busy", "evaluating")) is told


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
    ("calls", "expected"),
    [
        ((*LOOP, "torch.isfinite"), ("slow", "skipping_steps", 0.8)),
        (LOOP, ("slow", "skipping_steps", 0.65)),  # it compares the loss with itself, say
        ((*LOOP, "torch.set_grad_enabled"), ("busy", "evaluating", 0.65)),  # one loop for both phases
        (("model", "optimizer.zero_grad"), ("busy", "evaluating", 0.65)),  # nobody knows who makes the steps
    ],
)
def test_gradients_that_are_cleared_and_not_made_are_no_sure_evaluation(
    calls: tuple[str, ...], expected: tuple[str, str, float]
) -> None:
    """To clear gradients is no update: forward passes alone are seen beside it."""
    verdict = training(calls).goes_on(20.0, [*MODEL, *OTHER, CLEARS]).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == expected


@pytest.mark.parametrize(("block", "told"), [("", True), ("torch.no_grad()", False), ("context", False)])
def test_a_block_without_gradients_beside_the_passes_says_nothing_of_them(block: str, told: bool) -> None:
    """Loops that train average their weights in one. One around the passes does, or may if it has only a name."""
    job = Training(card=False)
    calls, within = (*LOOP, "torch.isfinite", "torch.no_grad", "average.lerp_"), (block,) if block else ()
    for line in (12, 16, 17, 18):
        job.add(SourceLine(file=TRAIN, line=line, text="", loop_calls=calls, loops=("for",), within=within))

    assert (confidence_in(job.goes_on(20.0, [*MODEL, *OTHER]).verdict(), "skipping_steps") > 0) is told


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
    verdict = job.goes_on(20.0, [(*stack, *callers) for stack in (*MODEL, *OTHER, CLEARS)]).verdict()

    assert (confidence_in(verdict, "skipping_steps") > 0) is told


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

    assert (confidence_in(job.verdict(), "skipping_steps") > 0) is told


@pytest.mark.parametrize(("seconds", "told"), [(50, False), (80, True)])
def test_where_no_step_was_ever_counted_passes_tell_for_how_long_there_is_none(seconds: int, told: bool) -> None:
    """The first step of a run may take a minute."""
    job = training((*LOOP, "torch.isfinite"))
    for _ in range(seconds):
        job.goes_on(1.0, [*MODEL]).add(Steps(pid=PID, tid=PID, count=0))

    assert (confidence_in(job.verdict(), "skipping_steps") > 0) is told


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
    verdict = Training(card=False).goes_on(126.0, before).goes_on(22.0, now).verdict()

    assert (confidence_in(verdict, "skipping_steps") > 0) is told


@pytest.mark.parametrize(
    ("text", "calls", "skips"),
    [
        ("if not torch.isfinite(p.grad).all():", ("torch.isfinite", "all"), True),
        ("norms = [p.grad.norm() for p in parameters]", ("p.grad.norm",), True),
        ("p -= rate * p.grad", (), False),  # an update of its own
        ("if not torch.isfinite(loss):", ("torch.isfinite",), False),
    ],
)
def test_a_look_at_gradients_goes_with_a_step(text: str, calls: tuple[str, ...], skips: bool) -> None:
    """It touches each gradient once, as a clipping does, and may cost more than a step: where it is seen, a step should be too."""
    job = Training(card=False)
    for line in (12, 13, 15):
        job.add(SourceLine(file=TRAIN, line=line, text=text, calls=calls, loop_calls=(*LOOP, *calls), loops=("for",)))
    verdict = job.goes_on(20.0, [FORWARD, BACKWARD, (Frame("train", TRAIN, 15),), FORWARD]).verdict()

    assert said(verdict) == (("slow", "skipping_steps") if skips else ("healthy", "cpu_training"))


WORLD = "/app/harbour.py"
MOVES = (Frame("Harbour.collisions", WORLD, 31), Frame("Harbour.step", WORLD, 40), Frame("main", TRAIN, 52))
IN_A_LIBRARY = (
    Frame("collisions", WORLD, 31),
    Frame("step", "/home/user/venv/lib/python3.12/site-packages/gymnasium/wrappers/common.py", 125),
    Frame("main", TRAIN, 52),
)
PARTS = (FORWARD, BACKWARD, OPTIMIZER)
GYM = "obs, reward, terminated, truncated, info = harbour.step(action)"


def learns(text: str, *calls: str, steps: tuple[Frame, ...] = MOVES, times: int = 2) -> Training:
    """A loop that spends ``times`` times as long below its line 52 as in each part of a training step."""
    job = Training(card=False)
    job.add(
        SourceLine(file=TRAIN, line=52, text=text, calls=calls, loops=("for",)),
        SourceLine(file=WORLD, line=31, text="near = [b for b in self.boats if b.at(x)]", loops=("for",)),
    )
    return job.goes_on(20.0, [*PARTS, *[steps] * times])


@pytest.mark.parametrize(
    ("text", "call", "steps"),
    [
        (GYM, "harbour.step", MOVES),
        ("answers.append(env.step(action))", "env.step", MOVES),
        ("s, r, done = self.world.step(a)", "self.world.step", MOVES),
        ("out = model_env.run(action)", "model_env.run", IN_A_LIBRARY),
    ],
)
def test_an_environment_that_takes_most_of_the_time_makes_experience(
    text: str, call: str, steps: tuple[Frame, ...]
) -> None:
    """By how it answers, by what it is called, or by the library that it stands below; and nobody advises workers."""
    verdict = learns(text, call, steps=steps, times=5).verdict()

    assert said(verdict) == ("busy", "evaluating")
    assert confidence_in(verdict, "serial_loading") == 0.0


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("batch = bags.step(index)", "bags.step"),
        ("a, b = pairs.step(i)", "pairs.step"),
        ("inventory.step()", "inventory.step"),
    ],
)
def test_a_function_that_is_merely_called_step_makes_data(text: str, call: str) -> None:
    """No three names take its answer, and its owner is called otherwise."""
    verdict = learns(text, call, times=5).verdict()

    assert said(verdict) == ("slow", "serial_loading")
    assert confidence_in(verdict, "evaluating") == 0.0


def test_a_step_of_a_trainer_is_no_environment_whatever_it_answers() -> None:
    """Three figures come from it: below it lies the training itself."""
    job = learns("loss, accuracy, seen = trainer.step(batch)", "trainer.step", times=5)
    before = job.verdict()
    job.goes_on(1.0, [(*BACKWARD[:1], *MOVES[1:]), MOVES])

    assert before.cause == "evaluating"
    assert said(job.verdict()) == ("slow", "serial_loading")


def test_training_that_steps_an_environment_now_and_then_goes_on() -> None:
    """A third of the time: it is neither loading nor collecting."""
    verdict = learns(GYM, "harbour.step", times=2).verdict()

    assert said(verdict) == ("healthy", "cpu_training")
    assert confidence_in(verdict, "serial_loading") == confidence_in(verdict, "evaluating") == 0.0


@pytest.mark.parametrize(
    ("around", "loads"), [(("harbour.step", "stack"), False), (("harbour.step", "loss.backward"), True)]
)
def test_the_loop_around_the_environment_is_no_loading_either(around: tuple[str, ...], loads: bool) -> None:
    """It acts, and keeps what came of it; a loop that goes backward as well may make its batches there."""
    keeps = (Frame("main.<locals>.<listcomp>", TRAIN, 55), Frame("main", TRAIN, 55))
    job = learns(GYM, "harbour.step", times=0)
    job.add(SourceLine(file=TRAIN, line=55, text="kept = [torch.tensor(o) for o in seen]", loop_calls=around))

    verdict = job.goes_on(40.0, [*PARTS, MOVES, keeps, keeps, keeps]).verdict()

    assert (confidence_in(verdict, "serial_loading") > 0) is loads


@pytest.mark.parametrize(
    ("case", "most"),
    [
        ("slow_output/fires/pictures", Bin.PICTURES),
        ("contended_lock/fires/holder_rests", Bin.LOCK),
        ("serial_loading/fires/serial_loading", Bin.LOADING),
    ],
)
def test_each_sample_counts_in_one_bin_of_the_time(case: str, most: Bin) -> None:
    """The shares sum to one; a slow run spends its time in the bin of its cause."""
    recording = load_case(RECORDINGS / case)
    seen = Case(History(recording.records, recording.end), recording.session)
    spent = budget(seen, seen.ranks[0])

    assert sum(map(spent.share, Bin)) == pytest.approx(1.0)
    assert spent.share(most) >= 0.15
