"""What makes a calm job suspect: its cards and their driver speak before the steps are late."""

import pytest

from perfwatch.attention import alarm
from perfwatch.probes.readings import GpuEvent, GpuSilence, Reading
from tests.cards import UUID, h200
from tests.training import BACKWARD, FORWARD, OPTIMIZER, READS_LOSS, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]


def calm() -> Training:
    """A training that goes on: its last step was a moment ago."""
    return Training().goes_on(12, STEPS, load="bf16_matmul").steps(120, *[0.1] * 60)


def test_a_training_that_goes_on_raises_no_alarm() -> None:
    """It is left alone."""
    assert alarm(calm().case()) == ""


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (GpuEvent(uuid=UUID, xid=79), "fallen off the bus"),
        (GpuSilence(call="sample", waited_seconds=4.0), "does not answer"),
    ],
)
def test_what_the_driver_says_or_fails_to_say_is_an_alarm(reading: Reading, words: str) -> None:
    """The job may not have noticed yet."""
    job = calm()
    job.add(reading)

    assert words in alarm(job.case())


def test_a_corrected_error_is_no_alarm() -> None:
    """A row that was remapped costs nothing now."""
    job = calm()
    job.add(GpuEvent(uuid=UUID, xid=63))

    assert alarm(job.case()) == ""


def test_a_card_that_is_lost_is_an_alarm() -> None:
    """The driver no longer reaches it."""
    job = calm()
    described = h200()
    job.add(type(described)(uuid=UUID, index=0, name=described.name, lost=True))

    assert "gpu 0 is lost" in alarm(job.case())


def test_kernels_that_do_not_end_are_an_alarm_before_the_step_is_late() -> None:
    """Steps of ten seconds are missed after fifty; their card tells after three."""
    job = Training().goes_on(12, STEPS, load="bf16_matmul")
    job.goes_on(4, [READS_LOSS], load="one_spinning_kernel").steps(12, *[10.0] * 12, ago=4.0)

    assert "has not ended" in alarm(job.case())
