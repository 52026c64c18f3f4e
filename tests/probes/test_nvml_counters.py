"""What becomes of counters: those refreshed now and then, in other hands, wrapped, not read, or not there at all."""

from collections.abc import Sequence

import pytest

from perfwatch_probes.nvml_layer import IN_USE, NO_PERMISSION, NOT_SUPPORTED, Refused
from perfwatch_probes.nvml_sampler import RARE_SECONDS, SLOW_SECONDS, Sampler
from perfwatch_probes.readings import Gpu, GpuActivity, GpuErrors, GpuSample, ProbeCall
from tests.nvml_layer import IDLE, NOTHING, FakeCard, FakeNvml, answers, machine
from tests.probes.nvml_watching import HALF, Clock, Watched, of


def test_a_card_without_gpm_is_read_without_it() -> None:
    """Ampere: the card says so, and nothing is reported as missing again and again."""
    card = FakeCard("GPU-a", answers=answers(nvmlGpmQueryDeviceSupport={"isSupportedDevice": 0}))
    card.answers["nvmlDeviceGetCudaComputeCapability",] = (8, 0)
    card.answers["nvmlDeviceGetNumGpuCores",] = 6912
    watched = Watched(FakeNvml([card]))
    readings = [*watched.after(), *watched.after(), *watched.after()]

    (gpu,) = of(Gpu, watched.described)
    assert (gpu.gpm, gpu.sms) == (False, 108)
    assert len(of(GpuSample, readings)) == 3
    assert not of(GpuActivity, readings)
    assert of(GpuSample, watched.after(SLOW_SECONDS))[0].nvlink_received_kib == 20
    assert not of(ProbeCall, readings)


def test_all_zero_within_one_refresh_is_no_reading() -> None:
    """The next look then spans more than a refresh, and tells of the whole time."""
    nvml = machine(1)
    watched = Watched(nvml)
    watched.after()
    nvml.cards[0].activity = NOTHING
    missed = of(GpuActivity, watched.after())
    nvml.cards[0].activity = HALF
    (found,) = of(GpuActivity, watched.after())

    assert missed == []
    assert found.interval_seconds == pytest.approx(0.2)
    assert found.graphics == 0.5


def test_all_zero_over_several_refreshes_is_an_idle_card() -> None:
    """An idle card is a reading, or idleness could never be seen."""
    nvml = machine(1, activity=NOTHING)
    watched = Watched(nvml)
    found = [one for _ in range(5) for one in of(GpuActivity, watched.after())]

    assert [one.graphics for one in found] == [0.0]
    assert found[0].interval_seconds == pytest.approx(0.3)


def test_all_zero_with_something_that_is_no_number_is_no_reading() -> None:
    """However long it lasts: the counters were not there."""
    nvml = machine(1, activity=NOTHING | {10: float("nan")})
    watched = Watched(nvml)
    torn = [one for _ in range(5) for one in of(GpuActivity, watched.after())]
    nvml.cards[0].activity = HALF

    assert torn == []
    assert [one.graphics for one in of(GpuActivity, watched.after())] == [0.5]


def test_a_little_traffic_shows_that_the_counters_were_refreshed() -> None:
    """An idle card answers its observer over PCIe: that is enough to believe the zeros."""
    watched = Watched(machine(1, activity=IDLE))
    watched.after()

    (found,) = of(GpuActivity, watched.after())

    assert (found.graphics, found.pcie_sent_mib_per_second) == (0.0, 1.4)


def test_looks_that_come_too_fast_are_not_compared() -> None:
    """Two looks within a refresh tell nothing of each other."""
    watched = Watched(machine(1))
    watched.after()

    assert of(GpuActivity, watched.after(0.02)) == []
    assert len(of(GpuActivity, watched.after(0.08))) == 1


def test_a_metric_that_a_card_lacks_is_none() -> None:
    """NVLink on a PCIe card, or something that is not a number."""
    nvml = machine(1, activity=HALF | {60: None, 61: float("nan")})
    watched = Watched(nvml)
    watched.after()

    (found,) = of(GpuActivity, watched.after())

    assert found.nvlink_received_mib_per_second is found.nvlink_sent_mib_per_second is None
    assert found.graphics == 0.5


def test_gpm_in_other_hands_is_said_once_and_comes_back() -> None:
    """Everything else goes on."""
    nvml = machine(1, gpm_refusal=IN_USE)
    watched = Watched(nvml)
    before = [*watched.after(), *watched.after(), *watched.after(RARE_SECONDS)]
    nvml.cards[0].gpm_refusal = None
    after = [*watched.after(RARE_SECONDS), *watched.after(), *watched.after()]

    (call,) = of(ProbeCall, before)
    assert (call.probe, call.entity, call.outcome) == ("gpm", "GPU-00000000", "unavailable")
    assert "dcgmi" in call.advice
    assert len(of(GpuSample, before)) == 3
    assert [one.outcome for one in of(ProbeCall, after)] == ["ok"]
    assert of(GpuActivity, after)


def test_gpm_for_administrators_only_is_said_with_its_own_fix() -> None:
    """Nobody holds the counters; we may not read them."""
    watched = Watched(machine(1, gpm_refusal=NO_PERMISSION))

    (call,) = of(ProbeCall, watched.after())

    assert "NVreg_RestrictProfilingToAdminUsers=0" in call.advice


def test_counters_that_wrap_go_on_growing() -> None:
    """PCIe bytes are counted in 32 bits by some drivers; a counter that the link cannot have made wrap was reset."""
    counts = (4_294_960_000, 4_294_967_000, 5_000, 9_000, 100, 2_400_000_100, 4_800_000_100 - 2**32)
    grown = (4_294_960_000, 4_294_967_000, 2**32 + 5_000, 2**32 + 9_000, 2**32 + 9_100)

    assert received(counts, generation=1, width=1) == [*grown, grown[-1] + 2_400_000_000, grown[-1] + 4_800_000_000]


def test_bytes_that_may_have_wrapped_more_than_once_are_not_told() -> None:
    """Ten seconds of the slowest link are less than 4 GiB, of a usual one several times that."""
    counts = (1_000, 3_000_000_000, 900_000_000)

    assert received(counts, generation=4, width=16) == [1_000, None, None]
    assert received(counts, generation=None, width=None) == [1_000, None, None]


def test_a_counter_that_was_above_32_bits_does_not_wrap() -> None:
    """However fast the link is; what it said before was true as well."""
    counts = (1_000, 3_000_000_000, 2**40, 2**40 + 7, 100)

    assert received(counts, generation=5, width=16) == [1_000, None, 2**40, 2**40 + 7, 2**40 + 107]


def test_a_look_that_came_too_late_ends_what_can_be_told() -> None:
    """Twenty seconds without a look are more than even the slowest link needs: the sum would lack what passed in them."""
    assert received((1_000, 2_000, 3_000), generation=1, width=1, seconds=20.0) == [1_000, None, None]


def received(
    counts: Sequence[int], generation: int | None, width: int | None, seconds: float = RARE_SECONDS
) -> list[int | None]:
    """What is told of a card behind this link whose counter of PCIe bytes stands so at each look."""
    link = {"nvmlDeviceGetMaxPcieLinkGeneration": generation, "nvmlDeviceGetMaxPcieLinkWidth": width}
    card = FakeCard(
        "GPU-a",
        answers=answers(**{call: Refused(NOT_SUPPORTED) if told is None else told for call, told in link.items()}),
    )
    watched = Watched(FakeNvml([card]))
    seen = []
    for counted in counts:
        card.fields[198] = counted
        seen += [one.pcie_received_bytes for one in of(GpuSample, watched.after(seconds))]
    return seen


def test_errors_of_all_links_are_added() -> None:
    """They are told link by link; a card without NVLink is not asked."""
    nvml = machine(2)
    nvml.cards[0].fields |= {(161, 3): 2, (163, 17): 5}
    nvml.cards[1].answers = {call: told for call, told in answers().items() if call[0] != "nvmlDeviceGetNvLinkState"}

    assert [one.nvlink_errors for one in of(GpuErrors, Watched(nvml).after())] == [7, None]


def test_links_take_turns_in_being_asked_for_their_errors() -> None:
    """One question takes 840 us of CPU: all are asked at first, then two links a time, and each within nine looks."""
    nvml = machine(1)
    watched = Watched(nvml)
    watched.after()
    nvml.cards[0].fields[161, 17] = 4
    seen = [of(GpuErrors, watched.after(RARE_SECONDS)) for _ in range(9)]

    assert [one.nvlink_errors for told in seen for one in told] == [4]


def test_error_counters_are_told_when_they_change() -> None:
    """At the start, and when one has grown."""
    nvml = machine(1)
    watched = Watched(nvml)
    first = of(GpuErrors, watched.after())
    again = of(GpuErrors, watched.after(RARE_SECONDS))
    nvml.cards[0].fields[4] = 2
    grown = of(GpuErrors, watched.after(RARE_SECONDS))

    assert (len(first), again, [one.uncorrected for one in grown]) == (1, [], [2])


def test_a_counter_that_was_not_read_is_none() -> None:
    """Expensive ones are read now and then; the same number again would look like a counter that stands still."""
    watched = Watched(machine(1))
    read, not_read = (of(GpuSample, watched.after())[0] for _ in range(2))

    assert (read.pcie_replays, read.pcie_width) == (0, 16)
    assert (not_read.pcie_replays, not_read.pcie_width) == (None, 16)


def test_while_calm_one_card_at_a_time_has_its_units_compared() -> None:
    """That is what costs most: it is spread over the second."""
    nvml = machine(8)
    clock = Clock()
    sampler = Sampler(nvml, clock)
    sampler.start()
    told = []
    for _ in range(30):
        clock.now += 0.1
        told.append(len(of(GpuActivity, sampler.round())))

    assert max(told) == 1
    assert sum(told) == pytest.approx(8 * 3, abs=4)
