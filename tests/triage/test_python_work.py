"""Python within and beside the steps: hooks that torch calls back, optimizers of one's own, and other work of the training thread."""

import msgspec
import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Reading, SourceLine, Stack
from tests.recorded import RECORDINGS
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training, level, level_in
from tests.triage.retold import retold

HOOK = Frame("look_at", TRAIN, 30)
WRAPPER = Frame("BackwardHook._set_user_hook.<locals>.hook", f"{TORCH}/utils/hooks.py", 137)
NO_GRAD = Frame("context_decorator.<locals>.decorate_context", f"{TORCH}/utils/_contextlib.py", 124)
INNER = Frame("Module._call_impl.<locals>.inner", f"{TORCH}/nn/modules/module.py", 1845)
APPLY = Frame("Function.apply", f"{TORCH}/autograd/function.py", 625)
STEPPED = Frame("Optimizer.profile_hook_step.<locals>.wrapper", f"{TORCH}/optim/optimizer.py", 538)
CHECKPOINT = Frame("CheckpointFunction.forward", f"{TORCH}/utils/checkpoint.py", 250)
LOOPS = [(Frame("look_at", TRAIN, line), *BACKWARD) for line in (30, 31)]


@pytest.mark.parametrize(
    ("frames", "called"),
    [
        ((HOOK, *BACKWARD), True),
        ((HOOK, WRAPPER, *BACKWARD), True),
        ((HOOK, NO_GRAD, *BACKWARD), True),
        ((HOOK, INNER), True),
        ((HOOK, APPLY), True),
        ((HOOK, STEPPED), True),
        ((Frame("mean", "/usr/lib/python3.12/statistics.py", 400), HOOK, *BACKWARD), True),
        ((Frame("Tensor.norm", f"{TORCH}/_tensor.py", 900), HOOK, *BACKWARD), False),  # torch computes
        ((Frame("Net.forward", TRAIN, 8), INNER), False),  # the model itself, of which a hook is asked as well
        ((Frame("Own.step", TRAIN, 50), NO_GRAD, STEPPED), True),  # an optimizer of its own
        ((HOOK, CHECKPOINT, APPLY), False),  # a part of the model that is computed again
        ((HOOK, *FORWARD), False),
    ],
)
def test_hooks_and_functions_of_its_own_are_called_back(frames: tuple[Frame, ...], called: bool) -> None:
    """The frame of torch that makes the call tells: here a loop of Python, two thirds of the time."""
    job, own = Training(card=False), next(frame for frame in frames if frame.file == TRAIN)
    below = () if frames[-1].file == TRAIN and frames[-1] != own else (Frame("train", TRAIN, 13),)
    turns = []
    for line in (own.line, own.line + 1):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", loops=("for",)))
        turns.append((*(Frame(own.function, TRAIN, line) if one == own else one for one in frames), *below))
    steps = [turns[number % 2] for number in range(13)] + [FORWARD, BACKWARD, OPTIMIZER] * 2
    verdict = job.goes_on(20.0, steps, owns_gil=True).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is called
    assert ("Python that torch calls back within each step" in verdict.summary) is called


@pytest.mark.parametrize(
    ("hooked", "owns_gil", "calls", "loops", "confidence"),
    [
        (13, True, ("round",), ("for",), "certain"),
        (5, True, (), ("for",), "high"),
        (1, True, (), ("for",), None),
        (13, False, (), ("for",), None),  # operations of torch
        (13, True, ("native.crunch",), ("for",), None),  # an extension may keep the GIL as well
        (13, True, (), (), None),  # no loop is known
    ],
)
def test_only_loops_of_python_that_keep_the_gil_hold_steps_up(
    hooked: int, owns_gil: bool, calls: tuple[str, ...], loops: tuple[str, ...], confidence: str | None
) -> None:
    """A loop of its own with tensors in it is training, and so is a brief one."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", calls=calls, loops=loops))
    steps = [LOOPS[number % 2] for number in range(hooked)] + [FORWARD, BACKWARD, OPTIMIZER] * ((20 - hooked) // 3)
    verdict = job.goes_on(20.0, steps, owns_gil=owns_gil).verdict()

    assert level_in(verdict, "host_bound_python") == confidence
    assert (verdict.cause == "host_bound_python") is (confidence is not None)
    assert confidence is None or (verdict.culprits[0].frame or "").startswith("look_at (train.py:3")


def test_where_hardly_a_dump_was_taken_a_loop_of_python_is_healthy_less_surely() -> None:
    """Samples do not show which thread has the GIL, dumps do."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", loops=("for",)))
    job.goes_on(22.0, [*LOOPS, FORWARD, OPTIMIZER], owns_gil=None)
    verdict = job.verdict()

    assert level_in(verdict, "host_bound_python") == "low"
    assert (verdict.state, verdict.cause, level(verdict.confidence)) == ("healthy", "cpu_training", "medium")
    assert "which torch calls back" in verdict.summary


@pytest.mark.parametrize("case", ["hook_of_small_tensors", "extension_that_keeps_the_gil"])
def test_other_work_that_is_called_back_is_no_python(case: str) -> None:
    """Recorded beside neighbours that take the CPUs: what is called back is not what is slow."""
    assert level_in(retold(RECORDINGS / "host_bound_python" / "lookalike" / case), "host_bound_python") is None


@pytest.mark.parametrize(
    ("calls", "owns_gil", "told"), [((), True, True), (("update.mul", "p.add_"), True, False), ((), False, False)]
)
def test_an_optimizer_of_its_own_that_goes_through_numbers_holds_steps_up(
    calls: tuple[str, ...], owns_gil: bool, told: bool
) -> None:
    """One that goes through its parameters, with an operation of torch for each, is an optimizer as any other."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="m[i] += g[i]", calls=calls, loops=("for", "for")))
    steps = [(Frame("Own.step", TRAIN, 30 + number % 2), NO_GRAD, STEPPED, BACKWARD[1]) for number in range(10)]
    verdict = job.goes_on(20.0, [*steps, FORWARD, BACKWARD], owns_gil=owns_gil).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is told


@pytest.mark.parametrize(
    ("inner", "doubted"),
    [
        ((), True),
        ((Frame("raw_decode", "/usr/lib/python3.12/json/decoder.py", 353),), True),
        ((Frame("relu", f"{TORCH}/nn/functional.py", 1500),), False),
    ],
)
def test_a_model_that_reads_texts_in_its_forward_is_doubted(inner: tuple[Frame, ...], doubted: bool) -> None:
    """What keeps the GIL there is no arithmetic of torch; the line is reported."""
    own = (*inner, Frame("forward", TRAIN, 8), *FORWARD)
    verdict = Training(card=False).goes_on(20.0, [own, own, own, BACKWARD, OPTIMIZER], owns_gil=True).verdict()

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert (level(verdict.confidence) != "certain") is doubted
    assert ("plain Python, at forward (train.py:8)" in verdict.summary) is doubted


@pytest.mark.parametrize(("caller", "told"), [(INNER, True), (APPLY, False)])
def test_numpy_in_a_hook_is_reported_and_in_an_operation_of_the_models_own_it_is_not(caller: Frame, told: bool) -> None:
    """A function with a backward of its own may be the model; one that only looks at activations is not."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack):
            return reading
        hooked = reading.frames[:1] and any(frame.function.endswith(".hook") for frame in reading.frames)
        frames = tuple(caller if hooked and frame.function == INNER.function else frame for frame in reading.frames)
        return msgspec.structs.replace(reading, frames=frames)

    verdict = retold(RECORDINGS / "host_bound_python" / "fires" / "hook_in_numpy", changed)

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is told
    assert level(verdict.confidence) != "certain"


OWN = [(Frame("edit_distance", TRAIN, line), Frame("train", TRAIN, 18)) for line in (30, 31)]


def mixed(torn: int, owned: int) -> Verdict:
    """Steps that are mostly the program's own work, which so many dumps found with the GIL and without."""
    job = Training(card=False).goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None)
    for number in range(owned + torn):
        torn_now = number * torn // (owned + torn) < (number + 1) * torn // (owned + torn)
        job.goes_on(1.0, OWN, owns_gil=not torn_now, samples=1).goes_on(0.5, OWN[:1], owns_gil=None)
    return job.goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None).verdict()


@pytest.mark.parametrize(("torn", "owned", "told"), [(0, 10, True), (1, 9, True), (5, 5, False), (9, 1, False)])
def test_one_dump_that_was_torn_does_not_hide_that_python_computes(torn: int, owned: int, told: bool) -> None:
    """Operations of torch are without the GIL in most dumps, not in one of ten: then it may be the model, and the place is reported."""
    verdict = mixed(torn, owned)

    expected = ("serial_loading", "high") if told else ("cpu_training", "medium")
    assert (verdict.cause, level(verdict.confidence)) == expected
    assert "at edit_distance (train.py:3" in verdict.summary
