"""What becomes of what the driver says, and of what it does not say. No GPU is needed: the layer is a stand-in."""

from collections.abc import Iterable
from typing import TypeVar

import pytest

from perfwatch.probes.nvml_gpm import REFRESH_SECONDS
from perfwatch.probes.nvml_layer import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    IN_USE,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Happened,
    Listed,
    Refused,
)
from perfwatch.probes.nvml_sampler import NO_CARDS, RARE_SECONDS, SLOW_SECONDS, Sampler
from perfwatch.probes.nvml_thinning import Timed
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import (
    Gpu,
    GpuActivity,
    GpuErrors,
    GpuEvent,
    GpuProcess,
    GpuSample,
    ProbeCall,
    Reading,
)
from tests.nvml_layer import IDLE, NOTHING, FakeCard, FakeNvml, answers, machine

R = TypeVar("R", bound=Reading)


class Clock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Watched:
    """A sampler with full detail, on a clock of its own."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.clock = Clock()
        self.sampler = Sampler(nvml, self.clock, wall=self.clock)
        self.sampler.attend()
        self.described = self.sampler.start()

    def after(self, seconds: float = REFRESH_SECONDS) -> list[Timed]:
        """The next round, so much later."""
        self.clock.now += seconds
        return self.sampler.round()


def of(kind: type[R], readings: Iterable[Timed]) -> list[R]:
    """Those of one kind."""
    return [one for _, one in readings if isinstance(one, kind)]


def test_a_card_says_what_it_is() -> None:
    """Multiprocessors come from cores and compute capability; everything else is asked for directly."""
    (gpu,) = of(Gpu, Watched(machine(1)).described)

    assert (gpu.uuid, gpu.name, gpu.architecture, gpu.compute_capability) == (
        "GPU-00000000", "NVIDIA H200", "hopper", (9, 0),
    )  # fmt: skip
    assert (gpu.sms, gpu.memory_bus_bits, gpu.power_limit_watts, gpu.sm_clock_max_mhz) == (132, 6144, 700.0, 1980)
    assert (gpu.nvlinks, gpu.pcie_generation_max, gpu.pcie_width_max, gpu.gpm, gpu.mig) == (18, 5, 16, True, False)


def test_a_working_card_is_read_in_our_units() -> None:
    """Shares from 0 to 1, watts, bytes."""
    watched = Watched(machine(1))
    (sample,) = of(GpuSample, watched.after())
    (activity,) = of(GpuActivity, watched.after())

    assert (sample.utilisation, sample.memory_utilisation, sample.power_watts) == (1.0, 0.37, 648.0)
    assert (sample.sm_clock_mhz, sample.temperature_celsius, sample.memory_used_bytes) == (1980, 51, 40_000_000_000)
    assert (sample.pcie_received_bytes, sample.nvlink_sent_kib, sample.nvlinks_active) == (2000, 10, 18)
    assert (activity.graphics, activity.sm_active, activity.tensor, activity.dram) == (1.0, 0.8, 0.228, 0.37)
    assert activity.pcie_received_mib_per_second == 20.0
    assert activity.interval_seconds == pytest.approx(0.1)


def test_a_driver_without_a_card_is_said() -> None:
    """A container that was given none: there is nothing to sample."""
    with pytest.raises(Unavailable) as why:
        Watched(machine(0))

    assert why.value.reason == NO_CARDS


@pytest.mark.parametrize("count", [1, 8, 16])
def test_any_number_of_cards_is_read(count: int) -> None:
    """Each of them, each time."""
    watched = Watched(machine(count))

    assert len(of(Gpu, watched.described)) == count
    assert len({one.uuid for one in of(GpuSample, watched.after())}) == count


def test_a_missing_library_is_said_with_the_way_out() -> None:
    """So is a driver that is not loaded."""
    for code, word in ((LIBRARY_NOT_FOUND, "NVIDIA_DRIVER_CAPABILITIES"), (DRIVER_NOT_LOADED, "modprobe nvidia")):
        sampler = Sampler(FakeNvml(refusal=Refused(code, "no")), Clock())
        with pytest.raises(Unavailable) as why:
            sampler.start()
        assert word in why.value.advice


def test_what_a_card_does_not_support_is_none_and_not_asked_again() -> None:
    """A field, a call with one answer, and a whole structure."""
    card = FakeCard("GPU-a")
    card.fields = {identity: value for identity, value in card.fields.items() if identity not in (82, 197, 198)}
    del card.answers["nvmlDeviceGetTemperature", 0]
    del card.answers["nvmlDeviceGetUtilizationRates",]
    nvml = FakeNvml([card])
    watched = Watched(nvml)

    (first,) = of(GpuSample, watched.after(SLOW_SECONDS))
    nvml.asked.clear()
    (second,) = of(GpuSample, watched.after(SLOW_SECONDS))

    for sample in (first, second):
        assert sample.utilisation is sample.temperature_celsius is sample.memory_temperature_celsius is None
        assert sample.pcie_received_bytes is None
        assert sample.power_watts == 648.0
    assert "nvmlDeviceGetUtilizationRates" not in nvml.asked
    assert "nvmlDeviceGetTemperature" not in nvml.asked


def test_what_is_refused_today_is_asked_again() -> None:
    """A permission may be granted; a card that could not tell may."""
    card = FakeCard("GPU-a", answers=answers(nvmlDeviceGetUtilizationRates=Refused(NO_PERMISSION)))
    watched = Watched(FakeNvml([card]))
    (denied,) = of(GpuSample, watched.after())
    card.answers["nvmlDeviceGetUtilizationRates",] = {"gpu": 40, "memory": 1}
    (told,) = of(GpuSample, watched.after())

    assert (denied.utilisation, told.utilisation) == (None, 0.4)


def test_an_older_driver_is_asked_by_the_older_names() -> None:
    """Without field values there is still the power, and the reasons had another name."""
    card = FakeCard("GPU-a", fields={})
    del card.answers["nvmlDeviceGetCurrentClocksEventReasons",]
    card.answers["nvmlDeviceGetCurrentClocksThrottleReasons",] = 4
    card.answers["nvmlDeviceGetPowerUsage",] = 300_000
    card.answers["nvmlDeviceGetArchitecture",] = Refused(FUNCTION_NOT_FOUND)
    watched = Watched(FakeNvml([card]))

    (sample,) = of(GpuSample, watched.after())

    assert (sample.reasons, sample.power_watts, sample.power_violation_ns) == (4, 300.0, None)
    assert of(Gpu, watched.described)[0].architecture is None


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


def test_an_unknown_card_has_an_unknown_number_of_multiprocessors() -> None:
    """Never assumed from a neighbour in the table."""
    card = FakeCard("GPU-a", answers=answers(nvmlDeviceGetCudaComputeCapability=(99, 0), nvmlDeviceGetArchitecture=77))

    (gpu,) = of(Gpu, Watched(FakeNvml([card])).described)

    assert (gpu.sms, gpu.architecture) == (None, None)


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


def test_the_parts_of_a_card_are_cards_of_their_own() -> None:
    """MIG: each has its own multiprocessors, activity and processes; the whole card has the power."""
    part = FakeCard(
        "MIG-x",
        answers=answers(nvmlDeviceGetAttributes_v2={"multiprocessorCount": 16}) | {("nvmlDeviceGetGpuInstanceId",): 0},
        processes={"compute": [Listed(41, None)]},
        activity=HALF,
    )
    del part.answers["nvmlDeviceGetUtilizationRates",]
    card = FakeCard(
        "GPU-a", answers=answers(nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7), parts=[part]
    )
    watched = Watched(FakeNvml([card]))
    readings = [*watched.after(), *watched.after()]

    assert next((gpu.uuid, gpu.parent_uuid, gpu.mig) for gpu in of(Gpu, watched.described)) == ("GPU-a", None, True)
    (small,) = [gpu for gpu in of(Gpu, watched.described) if gpu.parent_uuid == "GPU-a"]
    assert (small.uuid, small.sms) == ("MIG-x", 16)
    assert [(one.uuid, one.graphics) for one in of(GpuActivity, readings)] == [("MIG-x", 0.5)]
    assert [(one.uuid, one.pid, one.memory_bytes) for one in of(GpuProcess, readings)] == [("MIG-x", 41, None)]


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


def test_processes_come_and_go() -> None:
    """With their memory and their share of the card's time."""
    nvml = machine(1, processes={"compute": [Listed(41, 2**30)], "graphics": [Listed(9, None)]})
    nvml.cards[0].shares = [
        (pid, int(seconds * 1e6), percent)
        for pid, seconds, percent in ((41, 999.0, 10), (41, 1000.0, 75), (9, 1000.0, 3))
    ]
    watched = Watched(nvml)
    there = of(GpuProcess, watched.after())
    quiet = of(GpuProcess, watched.after())
    nvml.cards[0].processes = {"graphics": [Listed(9, None)]}
    then = of(GpuProcess, watched.after(SLOW_SECONDS))

    assert [(one.pid, one.kind, one.memory_bytes, one.sm_utilisation) for one in there] == [
        (41, "compute", 2**30, 0.75), (9, "graphics", None, 0.03),
    ]  # fmt: skip
    assert quiet == []
    assert [(one.pid, one.gone) for one in then] == [(41, True), (9, False)]


def test_what_a_process_did_before_it_fell_idle_is_not_what_it_does() -> None:
    """The driver still has its samples of some seconds ago."""
    nvml = machine(1, processes={"compute": [Listed(41, 2**30), Listed(42, 2**30)]})
    nvml.cards[0].shares = [(41, int(995e6), 90), (42, int(1000e6), 80)]
    watched = Watched(nvml)

    assert [one.sm_utilisation for one in of(GpuProcess, watched.after())] == [None, 0.8]


def test_who_has_a_card_alone_is_not_asked_how_much_of_it() -> None:
    """That question is the most expensive one."""
    nvml = machine(1, processes={"compute": [Listed(41, 2**30)]})
    Watched(nvml).after()

    assert "process_utilisation" not in nvml.asked


def test_the_memory_of_a_suspect_job_is_read_at_every_look() -> None:
    """An allocator that gives back and takes again does so several times a second."""
    nvml = machine(1)
    watched = Watched(nvml)
    used = []
    for gibibytes in (30, 70, 30, 70):
        nvml.cards[0].answers["nvmlDeviceGetMemoryInfo",] = {"total": 2**37, "used": gibibytes * 2**30}
        used += [one.memory_used_bytes for one in of(GpuSample, watched.after())]

    assert used == [gibibytes * 2**30 for gibibytes in (30, 70, 30, 70)]


def test_an_xid_is_told_when_it_happens() -> None:
    """Other events are not ours."""
    nvml = machine(1)
    watched = Watched(nvml)
    nvml.events += [Happened("GPU-00000000", 0x8, 79), Happened("GPU-00000000", 0x10, 0)]

    found = of(GpuEvent, watched.after())

    assert [(one.uuid, one.xid, one.source) for one in found] == [("GPU-00000000", 79, "nvml")]


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


def test_a_calm_job_gets_one_reading_a_second_and_the_past_when_it_becomes_suspect() -> None:
    """The second's mean; and of the last half minute every sample."""
    nvml = machine(1)
    clock = Clock()
    sampler = Sampler(nvml, clock)
    sampler.start()
    told = []
    for tenth in range(400):
        clock.now += 0.1
        nvml.cards[0].fields[186] = 300_000 if tenth % 2 else 100_000
        told += sampler.round()
    past = of(GpuSample, sampler.attend())

    samples, activities = of(GpuSample, told), of(GpuActivity, told)
    assert 36 <= len(samples) <= 41
    assert 36 <= len(activities) <= 41
    assert samples[-1].power_watts == pytest.approx(200.0, abs=10.0)
    assert activities[-1].interval_seconds == pytest.approx(1.0, abs=0.11)
    assert 290 <= len(past) <= 302
    assert {one.power_watts for one in past} == {100.0, 300.0}


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


def test_a_permanent_refusal_of_all_fields_is_remembered() -> None:
    """A driver before field values existed."""
    nvml = machine(1)
    nvml.fields_refusal = Refused(NOT_SUPPORTED)
    watched = Watched(nvml)

    (sample,) = of(GpuSample, watched.after())

    assert (sample.power_watts, sample.nvlink_sent_kib) == (648.0, None)


HALF = IDLE | {1: 50.0, 2: 40.0}
