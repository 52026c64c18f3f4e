"""What becomes of what the driver says, and of what it does not say. No GPU is needed: the layer is a stand-in."""

import pytest

from perfwatch_probes.nvml_layer import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Listed,
    Refused,
)
from perfwatch_probes.nvml_process import CALM_BUDGET, FULL_BUDGET, LONGEST_PAUSE_SECONDS, PERIOD_SECONDS, Budget
from perfwatch_probes.nvml_sampler import NO_CARDS, SLOW_SECONDS, Sampler
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuActivity, GpuProcess, GpuSample
from tests.nvml_layer import FakeCard, FakeNvml, answers, machine
from tests.probes.nvml_watching import HALF, Clock, Watched, of


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


def test_an_unknown_card_has_an_unknown_number_of_multiprocessors() -> None:
    """Never assumed from a neighbour in the table."""
    card = FakeCard("GPU-a", answers=answers(nvmlDeviceGetCudaComputeCapability=(99, 0), nvmlDeviceGetArchitecture=77))

    (gpu,) = of(Gpu, Watched(FakeNvml([card])).described)

    assert (gpu.sms, gpu.architecture) == (None, None)


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


def test_a_process_is_ours_by_the_card_on_which_it_is_listed() -> None:
    """The minor of the card is asked with its pid; a part has that of its card."""
    part = FakeCard("MIG-x", processes={"compute": [Listed(41, None)]})
    cut = answers(nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7, nvmlDeviceGetMinorNumber=5)
    nvml = FakeNvml([FakeCard("GPU-a", answers=cut, parts=[part], processes={"compute": [Listed(40, None)]})])
    sampler = Sampler(nvml, Clock(), to_local=lambda pid, minor: pid if minor == 5 else None)
    sampler.start()

    assert [(one.pid, one.local_pid) for one in of(GpuProcess, sampler.round())] == [(40, 40), (41, 41)]


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
    assert 260 <= len(past) <= 275
    assert {one.power_watts for one in past} == {100.0, 300.0}


def test_a_permanent_refusal_of_all_fields_is_remembered() -> None:
    """A driver before field values existed."""
    nvml = machine(1)
    nvml.fields_refusal = Refused(NOT_SUPPORTED)
    watched = Watched(nvml)

    (sample,) = of(GpuSample, watched.after())

    assert (sample.power_watts, sample.nvlink_sent_kib) == (648.0, None)


@pytest.mark.parametrize(("full", "share"), [(False, CALM_BUDGET), (True, FULL_BUDGET)])
@pytest.mark.parametrize("dear", [0.02, 0.08, 0.5])
def test_a_dear_look_is_paid_for_by_the_pauses_after_it(full: bool, share: float, dear: float) -> None:
    """One in thirty is dear, and no pause is longer than a card may go unread."""
    budget = Budget()
    budget.pause(0.0, full)
    looks = [dear if number % 30 == 0 else 0.004 for number in range(300)]
    pauses = [budget.pause(one, full) for one in looks]

    assert max(pauses) <= LONGEST_PAUSE_SECONDS
    assert min(pauses) >= PERIOD_SECONDS
    assert sum(looks) / (sum(looks) + sum(pauses)) <= share


def test_looks_that_no_pause_pays_for_come_at_the_longest() -> None:
    """That is said of the probe; a job that becomes suspect is looked at as if nothing was owed."""
    budget = Budget()
    pauses = {budget.pause(0.1, full=False) for _ in range(100)}
    budget.forgive()

    assert pauses == {PERIOD_SECONDS, LONGEST_PAUSE_SECONDS}
    assert budget.pause(0.001, full=True) == PERIOD_SECONDS


@pytest.mark.parametrize("full", [False, True])
def test_after_the_first_look_the_second_one_is_not_put_off(full: bool) -> None:
    """It asks for everything (76 ms of CPU for two cards, measured), and only the second one tells what a card does."""
    budget = Budget()

    assert budget.pause(0.076, full) == PERIOD_SECONDS
    assert budget.pause(0.076, full) > PERIOD_SECONDS
    budget.forgive()
    assert budget.pause(0.076, full) == PERIOD_SECONDS
