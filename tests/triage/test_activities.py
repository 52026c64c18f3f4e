"""Units that read zero are believed, unless utilisation and power say all the while that the card was at work."""

from collections.abc import Sequence

import msgspec
import pytest

from perfwatch.triage.cards.activities import activities, contradicted
from perfwatch.triage.cards.gpu import regime
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, GpuActivity, GpuSample
from tests.cards import STEP_SECONDS, UUID, h200, load
from tests.training import BACKWARD, FORWARD, OPTIMIZER, READS_LOSS, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
BUSY = {"utilisation": 1.0, "memory_utilisation": 0.4, "power_watts": 691.0}
IDLE = {"utilisation": 0.0, "memory_utilisation": 0.0, "power_watts": 130.0}


def zeros(seconds: float, stacks: Sequence[tuple[Frame, ...]], before: float = 0.0, **sample: object) -> Verdict:
    """So many seconds in which the units read zero and every sample says something, perhaps after some that were in order."""
    said: dict[str, object] = {"utilisation": 1.0}
    job = Training(sample=said)
    if before:
        job.goes_on(before, STEPS, load="bf16_matmul", samples=10)
    said.update(sample)
    return job.goes_on(seconds, stacks, load="idle_context", samples=10).verdict()


@pytest.mark.parametrize("before", [0.0, 12.0])
def test_a_training_whose_units_read_zero_is_judged_by_what_the_driver_tells(before: float) -> None:
    """At 100 % and 691 W; the model is not on the CPU, less is sure, and what is missing is said."""
    verdict = zeros(20, STEPS, before, **BUSY)

    assert verdict.cause == "gpu_bound"
    assert verdict.confidence <= 0.75
    assert any("the units of gpu 0 tell that no kernel ran" in one.reason for one in verdict.missing)


@pytest.mark.parametrize("before", [0.0, 12.0])
def test_a_wait_for_a_card_that_works_is_no_idle_stream(before: float) -> None:
    """Eighty seconds at .item(), on a card of which only the units say that it has nothing to do."""
    assert zeros(80, [READS_LOSS], before, **BUSY).state != "hung"


@pytest.mark.parametrize("changes", [IDLE, {**BUSY, "power_watts": 130.0}, {**BUSY, "utilisation": 0.2}])
def test_zeros_that_one_of_both_bears_out_are_believed(changes: dict[str, float]) -> None:
    """A card that idles, one that is told as used and draws nothing, one that was used now and then."""
    history = History()
    history.add(0.0, h200())
    for number in range(50):
        for reading in load("idle_context", UUID, **changes):
            history.add(number * STEP_SECONDS, reading)
    history.at = 10.0

    assert len(activities(history, UUID)) == 50
    assert not contradicted(history, UUID)
    assert (regime(history, UUID).kind, regime(history, UUID).source) == ("idle", "gpm")


def test_a_card_that_is_looked_at_in_its_rests_has_rested() -> None:
    """It works and rests in turns: a look saw a kernel, and so its neighbours of three seconds are believed."""
    history = History()
    history.add(0.0, h200())
    for second in range(10):
        _, activity = load("bf16_matmul" if second == 4 else "idle_context")
        assert isinstance(activity, GpuActivity)
        history.add(second + 0.3, GpuSample(uuid=UUID, utilisation=1.0, power_watts=690.0))
        history.add(float(second), activity)
    history.at = 10.0

    assert [seen.at for seen in activities(history, UUID)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_look_that_was_torn_is_left_out() -> None:
    """All zero, and no word on the memory, among others that have one."""
    history = History(at=1.0)
    _, whole = load("bf16_matmul")
    torn = msgspec.structs.replace(load("idle_context")[1], dram=None)
    for at, reading in ((0.2, whole), (0.4, torn), (0.6, whole)):
        history.add(at, reading)

    assert [seen.at for seen in activities(history, UUID)] == [0.2, 0.6]
