"""Python that torch calls back: hooks, and functions with a backward of their own."""

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import SURE
from perfwatch.triage.history import History
from perfwatch.triage.rules import host_bound_python
from perfwatch.triage.shares.called_back import called_back
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, Reading, SourceLine, Stack
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training
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
    """What torch calls is told by the frame of torch that does it."""
    assert (called_back(Stack(pid=1, tid=1, frames=frames)) is not None) is called


@pytest.mark.parametrize(
    ("hooked", "owns_gil", "calls", "loops", "confidence"),
    [
        (13, True, ("round",), ("for",), 0.92),
        (5, True, (), ("for",), 0.82),
        (1, True, (), ("for",), None),
        (13, False, (), ("for",), None),  # operations of torch
        (13, True, ("native.crunch",), ("for",), None),  # an extension may keep the GIL as well
        (13, True, (), (), None),  # no loop is known
    ],
)
def test_only_loops_of_python_that_keep_the_gil_hold_steps_up(
    hooked: int, owns_gil: bool, calls: tuple[str, ...], loops: tuple[str, ...], confidence: float | None
) -> None:
    """A loop of its own with tensors in it is training, and so is a brief one."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", calls=calls, loops=loops))
    steps = [LOOPS[number % 2] for number in range(hooked)] + [FORWARD, BACKWARD, OPTIMIZER] * ((20 - hooked) // 3)
    found = host_bound_python.judge(job.goes_on(20.0, steps, owns_gil=owns_gil).case())

    assert (found.confidence if isinstance(found, Finding) else None) == confidence
    assert not isinstance(found, Finding) or (found.culprits[0].frame or "").startswith("look_at (train.py:3")


def test_where_hardly_a_dump_was_taken_a_loop_of_python_is_healthy_less_surely() -> None:
    """Samples do not say who has the GIL, dumps do."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", loops=("for",)))
    job.goes_on(22.0, [*LOOPS, FORWARD, OPTIMIZER], owns_gil=None)
    found, verdict = host_bound_python.judge(job.case()), job.verdict()

    assert isinstance(found, Finding)
    assert found.confidence < SURE
    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", 0.75)
    assert "which torch calls back" in verdict.summary


@pytest.mark.parametrize("case", ["hook_of_small_tensors", "extension_that_keeps_the_gil"])
def test_other_work_that_is_called_back_is_no_python(case: str) -> None:
    """Recorded beside neighbours that take the CPUs: what is called back is not what is slow."""
    folder = RECORDINGS / "host_bound_python" / "lookalike" / case
    recording, at = load_case(folder), expected_of(folder).at
    history = History(recording.until(at).records, at)

    assert not isinstance(host_bound_python.judge(Case(history, recording.session, recording.events)), Finding)


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
    found = host_bound_python.judge(job.goes_on(20.0, [*steps, FORWARD, BACKWARD], owns_gil=owns_gil).case())

    assert isinstance(found, Finding) is told


@pytest.mark.parametrize(
    ("inner", "doubted"),
    [
        ((), True),
        ((Frame("raw_decode", "/usr/lib/python3.12/json/decoder.py", 353),), True),
        ((Frame("relu", f"{TORCH}/nn/functional.py", 1500),), False),
    ],
)
def test_a_model_that_reads_texts_in_its_forward_is_doubted(inner: tuple[Frame, ...], doubted: bool) -> None:
    """What keeps the GIL there is no arithmetic of torch; the line is told."""
    own = (*inner, Frame("forward", TRAIN, 8), *FORWARD)
    verdict = Training(card=False).goes_on(20.0, [own, own, own, BACKWARD, OPTIMIZER], owns_gil=True).verdict()

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert (verdict.confidence <= 0.75) is doubted
    assert ("plain Python, at forward (train.py:8)" in verdict.summary) is doubted


@pytest.mark.parametrize(("caller", "told"), [(INNER, True), (APPLY, False)])
def test_numpy_in_a_hook_is_told_and_in_an_operation_of_the_models_own_it_is_not(caller: Frame, told: bool) -> None:
    """A function with a backward of its own may be the model; who only looks at activations is not."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack):
            return reading
        hooked = reading.frames[:1] and any(frame.function.endswith(".hook") for frame in reading.frames)
        frames = tuple(caller if hooked and frame.function == INNER.function else frame for frame in reading.frames)
        return msgspec.structs.replace(reading, frames=frames)

    verdict = retold(RECORDINGS / "host_bound_python" / "fires" / "hook_in_numpy", changed)

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is told
    assert verdict.confidence <= 0.75
