"""What becomes of counters: those refreshed now and then, in other hands, wrapped, not read, or not there at all."""

import pytest

from perfwatch.probes.nvml_layer import IN_USE, NO_PERMISSION
from perfwatch.probes.nvml_sampler import RARE_SECONDS, SLOW_SECONDS, Sampler
from perfwatch.probes.readings import Gpu, GpuActivity, GpuErrors, GpuSample, ProbeCall
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
    assert of(GpuSample, watched.after(SLOW_SECONDS))[0].pcie_received_bytes == 2000
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
    """PCIe bytes are counted in 32 bits by some drivers; a driver that was loaded anew counts from zero."""
    nvml = machine(1)
    card = nvml.cards[0]
    watched = Watched(nvml)
    seen = []
    for counted in (4_294_960_000, 4_294_967_000, 5_000, 9_000, 100):
        card.fields[198] = counted
        seen += [one.pcie_received_bytes for one in of(GpuSample, watched.after(RARE_SECONDS))]

    assert seen == [4_294_960_000, 4_294_967_000, 2**32 + 5_000, 2**32 + 9_000, 2**32 + 9_100]


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

    assert (read.pcie_received_bytes, read.pcie_width) == (2000, 16)
    assert (not_read.pcie_received_bytes, not_read.pcie_width) == (None, 16)


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
