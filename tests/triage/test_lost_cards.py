"""A card that the driver no longer reaches stops a job only where it is the job's, and only while it stays away."""

import msgspec
import pytest

from perfwatch.triage.cards.spinning import BY_DEVICE
from perfwatch.triage.cards.whose import Cards, cards_of, lost_cards
from perfwatch.triage.history import History
from perfwatch_probes.readings import Gpu, GpuBinding, GpuSilence, Reading
from tests.cards import UUID, bound, h200
from tests.training import PID, READS_LOSS, Training

UNKNOWN = GpuBinding(pid=PID, uuids=(), visible=(), how="", cuda=True)
PLACEHOLDER = Gpu(uuid="gpu 5", index=5, name="", lost=True)
LOST = msgspec.structs.replace(h200("GPU-5", 5), lost=True)
SILENT = GpuSilence(call="sample", uuid="GPU-5", waited_seconds=30.0)


@pytest.mark.parametrize("fault", [PLACEHOLDER, LOST])
def test_a_lost_card_of_nobody_does_not_hide_what_is_seen_of_the_others(fault: Reading) -> None:
    """Eight cards, no binding: one is lost, on another a kernel spins for which the thread waits."""
    job = Training(binding=UNKNOWN)
    job.add(fault)
    verdict = job.goes_on(40, [READS_LOSS], load="one_spinning_kernel", samples=10).verdict()

    assert (verdict.state, verdict.cause) == ("hung", "stuck_kernel")
    assert verdict.confidence <= BY_DEVICE


@pytest.mark.parametrize("fault", [LOST, SILENT])
def test_a_fault_of_a_card_that_may_be_anybodys_is_only_suspected(fault: Reading) -> None:
    """The others answer, and the thread stands for a reason that nobody sees."""
    job = Training(binding=UNKNOWN)
    job.add(h200("GPU-5", 5))
    job.goes_on(30, [READS_LOSS]).history.add(22.0, fault)
    verdict = job.verdict()

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "driver_unresponsive"


def test_where_every_card_is_lost_it_does_not_matter_whose_they_are() -> None:
    """One card, which the process may use, and no word on who does."""
    job = Training(binding=UNKNOWN).goes_on(14, [READS_LOSS])
    job.add(msgspec.structs.replace(h200(), lost=True))
    verdict = job.goes_on(12, [READS_LOSS]).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "driver_unresponsive", BY_DEVICE)


def test_a_card_that_could_not_be_named_and_answers_now_is_lost_no_longer() -> None:
    """It was read under its number alone; its description and samples come under its own name."""
    history = History(at=30.0)
    history.add(0.0, PLACEHOLDER)
    assert [seen.reading for seen in lost_cards(history)] == [PLACEHOLDER]
    history.add(10.0, h200("GPU-5", 5))

    assert lost_cards(history) == []
    assert cards_of(history, PID) == Cards(("GPU-5",), "device")


def test_a_card_that_was_named_before_and_cannot_be_now_is_lost() -> None:
    """A new sampler met it when it was gone already."""
    history = History(at=30.0)
    history.add(0.0, h200("GPU-5", 5))
    history.add(10.0, PLACEHOLDER)

    assert [seen.reading for seen in lost_cards(history)] == [PLACEHOLDER]


def test_of_a_card_and_a_part_of_it_a_process_uses_the_part() -> None:
    """CUDA gives a process one part, and nothing beside it."""
    history = History(at=1.0)
    history.add(0.0, h200())
    history.add(0.0, msgspec.structs.replace(h200("MIG-1"), parent_uuid=UUID))
    history.add(0.0, bound(PID, UUID, "MIG-1"))

    assert cards_of(history, PID).uuids == ("MIG-1",)
