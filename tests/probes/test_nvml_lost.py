"""Cards that are lost, found, and what the driver says of them meanwhile. No GPU is needed: the layer is a stand-in."""

from perfwatch.probes.nvml_layer import Happened
from perfwatch.probes.nvml_sampler import RARE_SECONDS, SLOW_SECONDS
from perfwatch.probes.readings import Gpu, GpuEvent, GpuSample, ProbeCall
from tests.nvml_layer import FakeCard, FakeNvml, machine
from tests.probes.nvml_watching import Watched, of


def test_a_card_that_is_lost_is_said_once_and_the_others_go_on() -> None:
    """It is tried again now and then, and described anew when it is back."""
    nvml = machine(3)
    watched = Watched(nvml)
    watched.after()
    nvml.cards[1].lost = True
    told = [*watched.after(), *watched.after(SLOW_SECONDS), *watched.after(RARE_SECONDS)]
    nvml.cards[1].lost = False
    back = [*watched.after(RARE_SECONDS), *watched.after()]

    assert [(gpu.uuid, gpu.lost) for gpu in of(Gpu, told)] == [("GPU-00000001", True)]
    assert [(call.entity, call.reason) for call in of(ProbeCall, told)] == [("gpu 1", "gpu 1: GPU is lost")]
    assert {one.uuid for one in of(GpuSample, told)} == {"GPU-00000000", "GPU-00000002"}
    assert [(gpu.uuid, gpu.lost) for gpu in of(Gpu, back)] == [("GPU-00000001", False)]
    assert [call.outcome for call in of(ProbeCall, back)] == ["ok"]
    assert len(of(GpuSample, back)) == 2 * 3 - 1


def test_a_card_that_was_lost_before_is_told_by_its_number() -> None:
    """Its UUID cannot be asked for."""
    watched = Watched(FakeNvml([FakeCard("GPU-a"), FakeCard("GPU-b", lost=True)]))

    assert [(gpu.uuid, gpu.index, gpu.lost) for gpu in of(Gpu, watched.described)] == [
        ("GPU-a", 0, False), ("gpu 1", 1, True),
    ]  # fmt: skip


def test_an_xid_is_told_when_it_happens() -> None:
    """Other events are not ours."""
    nvml = machine(1)
    watched = Watched(nvml)
    nvml.cards[0].events += [Happened(0x8, 79), Happened(0x10, 0)]

    found = of(GpuEvent, watched.after())

    assert [(one.uuid, one.xid, one.source) for one in found] == [("GPU-00000000", 79, "nvml")]


def test_the_xid_with_which_a_card_is_lost_is_told() -> None:
    """It comes when the card no longer answers anything, and says why."""
    nvml = machine(2)
    watched = Watched(nvml)
    nvml.cards[1].lost = True
    nvml.cards[1].events.append(Happened(0x8, 79))
    told = watched.after()

    assert [gpu.uuid for gpu in of(Gpu, told) if gpu.lost] == ["GPU-00000001"]
    assert [(one.uuid, one.xid) for one in of(GpuEvent, told)] == [("GPU-00000001", 79)]


def test_a_card_that_is_found_later_or_again_tells_its_xids() -> None:
    """And a card that is lost does not keep the others from telling theirs."""
    nvml = machine(3)
    nvml.cards[1].lost = True
    watched = Watched(nvml)
    nvml.cards[0].lost = True
    watched.after()
    nvml.cards[2].events.append(Happened(0x8, 13))
    others = watched.after(SLOW_SECONDS)
    nvml.cards[0].lost = nvml.cards[1].lost = False
    watched.after(RARE_SECONDS)
    for card in nvml.cards[:2]:
        card.events.append(Happened(0x8, 31))

    assert [(one.uuid, one.xid) for one in of(GpuEvent, others)] == [("GPU-00000002", 13)]
    assert [one.uuid for one in of(GpuEvent, watched.after(SLOW_SECONDS))] == ["GPU-00000000", "GPU-00000001"]
