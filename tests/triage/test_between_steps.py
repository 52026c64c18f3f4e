"""What a training thread does between its steps that is neither training nor the making of batches in Python."""

import msgspec

from perfwatch_probes.readings import Frame, Reading, Stack
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CLEANS = RECORDINGS / "serial_loading" / "fires" / "programs_started_for_each_batch"
EVALUATES = RECORDINGS / "cpu_training" / "fires" / "evaluations_every_few_steps"
GRADIENTS = "decorate_context"


def in_a_model(reading: Reading) -> Reading:
    """The same waits, in a forward pass: a simulation that is part of the model, say."""
    frames = reading.frames if isinstance(reading, Stack) else ()
    if not any(frame.file.endswith("/subprocess.py") for frame in frames):
        return reading
    module = Frame("Module._call_impl", "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1789)
    return msgspec.structs.replace(reading, frames=(*frames[:-1], module, frames[-1]))


def with_gradients(reading: Reading) -> Reading:
    """The same evaluations, by a function that nothing decorates."""
    if not isinstance(reading, Stack):
        return reading
    return msgspec.structs.replace(
        reading, frames=tuple(one for one in reading.frames if GRADIENTS not in one.function)
    )


def test_a_program_that_is_started_for_each_batch_is_work_of_the_training_thread() -> None:
    """It waits for that program two thirds of the time; nothing else does it meanwhile."""
    verdict = retold(CLEANS)

    assert (verdict.state, verdict.cause) == ("slow", "serial_loading")
    assert "mostly at __call__ (s15.py:56)" in verdict.summary


def test_a_program_that_the_model_waits_for_is_not() -> None:
    """That is its forward pass."""
    assert retold(CLEANS, in_a_model).cause != "serial_loading"


def test_evaluations_that_take_much_of_the_time_are_told_beside_a_healthy_training() -> None:
    """Whether they are meant to come so often, nobody knows from outside."""
    verdict = retold(EVALUATES)

    assert (verdict.state, verdict.confidence) == ("healthy", 0.65)
    assert "44% of it is forward passes without gradients, at evaluate (s18.py:54)" in verdict.summary


def test_passes_with_gradients_are_training() -> None:
    """Nothing says that they are not."""
    assert retold(EVALUATES, with_gradients).confidence == 0.95
