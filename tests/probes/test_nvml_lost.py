"""Cards that are lost, found, and what the driver says of them meanwhile. No GPU is needed: the layer is a stand-in."""

from perfwatch.triage.history import History
from perfwatch_probes.nvml_layer import UNKNOWN, Happened, Refused
from perfwatch_probes.nvml_sampler import RARE_SECONDS, SLOW_SECONDS
from perfwatch_probes.readings import Gpu, GpuEvent, GpuSample, ProbeCall
from tests.nvml_layer import FakeCard, FakeNvml, answers, machine
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


def test_a_card_that_refuses_everything_is_lost() -> None:
    """Its driver says "Unknown Error"; that it still knows its own name does not bring it back."""
    nvml = machine(2)
    watched = Watched(nvml)
    watched.after()
    nvml.cards[1].broken = True
    told = [*watched.after(SLOW_SECONDS), *watched.after(RARE_SECONDS), *watched.after(RARE_SECONDS)]
    nvml.cards[1].broken = False
    back = watched.after(RARE_SECONDS)

    assert [(gpu.uuid, gpu.lost) for gpu in of(Gpu, told)] == [("GPU-00000001", True)]
    assert [one.reason for one in of(ProbeCall, told) if one.entity == "gpu 1"] == ["gpu 1: Unknown Error"]
    assert {one.uuid for one in of(GpuSample, told)} == {"GPU-00000000"}
    assert [(gpu.uuid, gpu.lost) for gpu in of(Gpu, back)] == [("GPU-00000001", False)]


def test_one_look_without_an_answer_is_no_sample_and_no_loss() -> None:
    """The next one brings answers; nothing is told of the card meanwhile."""
    nvml = machine(1)
    watched = Watched(nvml)
    watched.after()
    nvml.cards[0].broken = True
    missed = watched.after()
    nvml.cards[0].broken = False

    assert (of(GpuSample, missed), of(Gpu, missed)) == ([], [])
    assert len(of(GpuSample, watched.after())) == 1


def test_an_unknown_error_to_one_question_is_no_loss() -> None:
    """Nor is a part that tells nothing any more: it is the card that is lost or not."""
    part = FakeCard("MIG-x")
    cut = answers(nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7)
    cut["nvmlDeviceGetTemperature", 0] = Refused(UNKNOWN, "Unknown Error")
    watched = Watched(FakeNvml([FakeCard("GPU-a", answers=cut, parts=[part])]))
    told = [*watched.described, *watched.after()]
    part.broken = True
    told += watched.after(RARE_SECONDS)

    assert [(gpu.uuid, gpu.lost) for gpu in of(Gpu, told)] == [("GPU-a", False), ("MIG-x", False)]


def test_a_card_whose_handle_cannot_be_had_is_lost() -> None:
    """The driver says so of a card that broke before we came: "Unable to determine the device handle"."""
    broken = FakeCard("GPU-b", broken=True, remembered=())
    watched = Watched(FakeNvml([FakeCard("GPU-a"), broken]))
    broken.broken = False
    back = watched.after(RARE_SECONDS)

    assert [(gpu.uuid, gpu.stand_in, gpu.lost) for gpu in of(Gpu, watched.described)] == [
        ("GPU-a", False, False), ("gpu 1", True, True),
    ]  # fmt: skip
    assert [one.reason for one in of(ProbeCall, watched.described)] == ["gpu 1: Unknown Error"]
    assert [(gpu.uuid, gpu.stand_in, gpu.lost) for gpu in of(Gpu, back)] == [("GPU-b", False, False)]


def test_what_stands_in_for_a_lost_card_is_over_when_the_card_is_found() -> None:
    """In what was read, up to each moment."""
    nvml = FakeNvml([FakeCard("GPU-a"), FakeCard("GPU-b", lost=True)])
    watched = Watched(nvml)
    history = History()
    for at, reading in watched.described:
        history.add(at, reading)
    before = lost(history)
    nvml.cards[1].lost = False
    for at, reading in watched.after(RARE_SECONDS):
        history.add(at, reading)

    assert (before, lost(history)) == (["gpu 1"], [])
    assert (history.entities(Gpu), history.of(Gpu, "gpu 1")) == ([("GPU-a",), ("GPU-b",)], [])


def lost(history: History) -> list[str]:
    """The cards that are lost by what was read of each last."""
    seen = [history.latest(Gpu, *key) for key in history.entities(Gpu)]
    return [one.reading.uuid for one in seen if one is not None and one.reading.lost]
