"""A recorded driver answers as the real one did, and takes as long."""

import json
from pathlib import Path

from perfwatch_probes.nvml_sampler import Sampler
from perfwatch_probes.readings import Gpu, GpuActivity, GpuProcess, GpuSample
from tests.nvml_layer import FakeNvml, machine
from tests.nvml_replay import Recording, Replayed
from tests.probes.nvml_watching import Clock, of

H200 = Path(__file__).parent / "nvml_h200.json"


def recorded(nvml: FakeNvml, path: Path) -> Path:
    """Everything that the sampler asks, written down."""
    recording = Recording(nvml)
    clock = Clock()
    sampler = Sampler(recording, clock)
    sampler.start()
    sampler.attend()
    for _ in range(3):
        sampler.round()
        clock.now += 0.25
    recording.save(path)
    return path


def test_eight_cards_from_the_recording_of_one(tmp_path: Path) -> None:
    """Alike, but each with a UUID and a process of its own."""
    path = recorded(machine(1), tmp_path / "driver.json")
    clock = Clock()
    sampler = Sampler(Replayed(path, 8, lambda _: None), clock)
    told = sampler.start()
    sampler.attend()
    for _ in range(3):
        clock.now += 0.25
        told += sampler.round()

    assert len({one.uuid for one in of(Gpu, told)}) == 8
    assert {(one.sms, one.name) for one in of(Gpu, told)} == {(132, "NVIDIA H200")}
    assert {one.power_watts for one in of(GpuSample, told)} == {648.0}
    assert {one.tensor for one in of(GpuActivity, told)} == {0.228}
    assert len({one.pid for one in of(GpuProcess, told)}) == 8


def test_what_was_refused_is_refused_again(tmp_path: Path) -> None:
    """A card without a memory sensor has none in the recording either."""
    nvml = machine(1)
    del nvml.cards[0].fields[82]
    sampler = Sampler(Replayed(recorded(nvml, tmp_path / "driver.json"), 1, lambda _: None), Clock())
    sampler.start()
    sampler.attend()

    (sample,) = of(GpuSample, sampler.round())

    assert (sample.memory_temperature_celsius, sample.temperature_celsius) == (None, 51)


def test_each_answer_takes_as_long_as_it_took(tmp_path: Path) -> None:
    """The time of each call is used up, refused ones included."""
    path = recorded(machine(1), tmp_path / "driver.json")
    answers = json.loads(path.read_text())
    path.write_text(json.dumps({key: answer | {"microseconds": 150} for key, answer in answers.items()}))
    spent: list[float] = []
    sampler = Sampler(Replayed(path, 1, spent.append), Clock())
    sampler.start()
    sampler.attend()
    spent.clear()
    sampler.round()

    assert len(spent) > 20
    assert set(spent) == {150e-6}


def test_a_real_h200_under_load_is_read_whole() -> None:
    """A matmul in bf16 on a card in a virtual machine, under its power cap; NVLink is not told there."""
    sampler = Sampler(Replayed(H200, 1, lambda _: None), clock := Clock())
    told = sampler.start()
    sampler.attend()
    for _ in range(3):
        clock.now += 0.1
        told += sampler.round()

    (gpu,) = of(Gpu, told)
    sample, activity = of(GpuSample, told)[0], of(GpuActivity, told)[-1]
    assert (gpu.name, gpu.architecture, gpu.sms, gpu.gpm, gpu.nvlinks) == ("NVIDIA H200", "hopper", 132, True, None)
    assert (sample.utilisation, sample.power_watts, sample.reasons) == (0.99, 693.102, 4)
    assert (sample.pcie_generation, sample.pcie_width, sample.nvlink_sent_kib) == (5, 16, None)
    assert (activity.tensor, activity.dram, activity.fp32) == (0.92946, 0.15404, 0.0)
    assert activity.pcie_received_mib_per_second == 29.81497
