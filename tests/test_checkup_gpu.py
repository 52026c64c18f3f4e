"""What the doctor says about GPUs: one real look, in the sampler's own process."""

from pathlib import Path

import pytest

from perfwatch.doctor.checkup import Ability
from perfwatch.doctor.gpu import GpuCheckup, examine_binding
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.nvml_layer import DRIVER_NOT_LOADED, IN_USE, Refused
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuActivity, GpuProcess, GpuSample, Process, Reading
from tests.nvml_layer import FakeCard, FakeNvml, answers, machine
from tests.probes.test_gpu_binding import holds

pytestmark = pytest.mark.live

RANK = Process(pid=100, start_ticks=1, parent_pid=1, name="python", command=(), environment={})


def examined(nvml: FakeNvml, tmp_path: Path) -> list[Ability]:
    """The findings."""
    (tmp_path / "nvidiactl").touch()
    return GpuCheckup(GpuProbe(lambda: nvml, Filesystem(dev=tmp_path))).examine()


def test_cards_that_can_be_watched(tmp_path: Path) -> None:
    """Counted by kind, with the driver's version, and their units."""
    gpus, gpm = examined(machine(8), tmp_path)

    assert (gpus.status, gpus.finding, gpus.fix) == ("ok", "driver 580.159: 8 x NVIDIA H200", "")
    assert gpm.status == "ok"


def test_no_driver_is_one_line(tmp_path: Path) -> None:
    """There is nothing to fix on a machine without GPUs."""
    (gpus,) = GpuCheckup(GpuProbe(lambda: machine(1), Filesystem(proc=tmp_path, dev=tmp_path))).examine()

    assert (gpus.status, gpus.finding) == ("ok", "there is no NVIDIA driver here: GPUs are not watched")


def test_a_driver_that_refuses_is_denied_with_its_fix(tmp_path: Path) -> None:
    """The module is not loaded."""
    (gpus,) = examined(FakeNvml(refusal=Refused(DRIVER_NOT_LOADED, "Driver Not Loaded")), tmp_path)

    assert (gpus.status, gpus.finding) == ("missing", "NVML: Driver Not Loaded")
    assert "modprobe nvidia" in gpus.fix


def test_cards_without_gpm_are_watched_with_less_certainty(tmp_path: Path) -> None:
    """Older than Hopper."""
    old = FakeCard("GPU-a", answers=answers(nvmlGpmQueryDeviceSupport={"isSupportedDevice": 0}))
    gpus, gpm = examined(FakeNvml([old]), tmp_path)

    assert gpus.status == "ok"
    assert gpm.status == "limited"
    assert "Hopper and newer" in gpm.finding


def test_gpm_in_other_hands_is_denied_with_its_fix(tmp_path: Path) -> None:
    """DCGM or a profiler holds the counters."""
    _, gpm = examined(machine(1, gpm_refusal=IN_USE), tmp_path)

    assert gpm.status == "limited"
    assert "dcgmi profile --pause" in gpm.fix


def test_a_lost_card_is_denied(tmp_path: Path) -> None:
    """By its number."""
    gpus, _ = examined(FakeNvml([FakeCard("GPU-a"), FakeCard("GPU-b", lost=True)]), tmp_path)

    assert gpus.status == "missing"
    assert gpus.finding == "driver 580.159: 1 x NVIDIA H200; lost: gpu 1"


@pytest.mark.parametrize(
    ("files", "contexts", "status", "finding"),
    [
        (["/dev/null"], [], "ok", "CUDA is not in use: judged as a job on CPUs"),
        (["/dev/nvidia-uvm", "/dev/nvidia1"], [], "ok", "gpu 1: by the device files that it holds"),
        (["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"], [], "limited", "it cannot be known"),
        (["/dev/nvidia-uvm"], ["GPU-0"], "ok", "gpu 0: the driver lists its context"),
    ],
)
def test_the_card_of_a_process(
    tmp_path: Path, files: list[str], contexts: list[str], status: str, finding: str
) -> None:
    """And how that is known."""
    holds(tmp_path, 100, *files)
    cards = {f"GPU-{index}": Gpu(uuid=f"GPU-{index}", index=index, name="NVIDIA H200", minor=index) for index in (0, 1)}
    listed = [GpuProcess(uuid=uuid, pid=100, local_pid=100) for uuid in contexts]

    (found,) = examine_binding(Filesystem(proc=tmp_path), RANK, cards, listed)

    assert found.status == status
    assert found.finding.startswith(finding)


def test_without_cards_there_is_nothing_to_say_of_a_process() -> None:
    """A machine without GPUs."""
    assert examine_binding(Filesystem(), RANK, {}, []) == []


class _Late:
    """A probe whose cards are read at once, and their units only after some seconds of its own clock."""

    trouble: Unavailable | None = None

    def __init__(self, units_after_seconds: float) -> None:
        self.now, self._units_after_seconds = 100.0, units_after_seconds

    def look(self, full: bool = False) -> list[tuple[float, Reading]]:
        told: list[Reading] = [Gpu(uuid="GPU-a", index=0, name="NVIDIA H200", gpm=True), GpuSample(uuid="GPU-a")]
        if self.now - 100.0 >= self._units_after_seconds:
            told.append(GpuActivity(uuid="GPU-a", interval_seconds=0.1, graphics=0.5))
        return [(self.now, one) for one in told]

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def close(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(("after_seconds", "status"), [(0.0, "ok"), (3.0, "ok"), (60.0, "limited")])
def test_units_that_come_late_are_waited_for(after_seconds: float, status: str) -> None:
    """A driver that many ask at once answers after seconds; one that never tells anything is not waited for without end."""
    probe = _Late(after_seconds)
    _, gpm = GpuCheckup(probe, clock=lambda: probe.now).examine()

    assert gpm.status == status
    assert probe.now < 110.0
