"""The sampler as a process: it may hang, die or be slow, and the watcher never waits for it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import ABSENT, GIVE_UP_SECONDS, GpuProbe
from perfwatch_probes.nvml_layer import LIBRARY_NOT_FOUND, Nvml, Refused
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuActivity, GpuSample, GpuSilence, Reading
from tests.nvml_layer import FakeNvml, machine

pytestmark = pytest.mark.live

PATIENCE_SECONDS = 20.0
Until = Callable[[Callable[[], bool]], None]


class Watcher:
    """A probe on a clock that can be set forward; what it has seen is kept."""

    def __init__(self, open_nvml: Callable[[], Nvml], dev: Path) -> None:
        self.ahead = 0.0
        self.seen: list[Reading] = []
        self.longest = 0.0
        self.others = children()  # a sampler of an earlier test may still be dying
        self.probe = GpuProbe(open_nvml, Filesystem(dev=dev), lambda: time.monotonic() + self.ahead)

    def until(self, kind: type[Reading], count: int = 1, later: float = 0.0) -> list[Reading]:
        """Look, each time so much later, until so many readings of a kind have come; returns them."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while len(found := [one for one in self.seen if isinstance(one, kind)]) < count:
            assert time.monotonic() < ends, f"no {kind.__name__}: {self.probe.trouble}"
            self.probe.wait(0.05)
            self.look()
            self.ahead += later
        return found

    def look(self) -> None:
        """Once, and how long it took."""
        began = time.monotonic()
        self.seen += [one for _, one in self.probe.look(full=True)]
        self.longest = max(self.longest, time.monotonic() - began)

    @property
    def sampler(self) -> int:
        """Its pid."""
        return next(pid for pid in children() if pid not in self.others and name(pid) == "perfwatch-gpu")


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[[Callable[[], Nvml]], Watcher]]:
    """Makes watchers of a machine with a driver, and ends them."""
    (tmp_path / "nvidiactl").touch()
    made: list[Watcher] = []

    def start(open_nvml: Callable[[], Nvml]) -> Watcher:
        made.append(Watcher(open_nvml, tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.probe.close()


def blocking_in(call: str, marker: Path | None = None) -> Callable[[], Nvml]:
    """Two cards; the second never answers a call. With a marker: only the first sampler ever meets that."""

    def open_nvml() -> FakeNvml:
        nvml = machine(2)
        if marker is None or not marker.exists():
            nvml.cards[1].blocks_in = call
        if marker is not None:
            marker.touch()
        return nvml

    return open_nvml


def test_readings_come_from_a_process_of_its_own(watch: Callable[[Callable[[], Nvml]], Watcher]) -> None:
    """Cards, samples and activity, from eight cards."""
    watcher = watch(lambda: machine(8))

    assert len({one.uuid for one in watcher.until(Gpu, 8) if isinstance(one, Gpu)}) == 8
    watcher.until(GpuSample, 16)
    watcher.until(GpuActivity, 16)
    assert watcher.probe.trouble is None


def test_a_machine_without_a_driver_starts_no_process(tmp_path: Path) -> None:
    """It says that there is none, and that is all."""
    with pytest.raises(Unavailable) as why:
        GpuProbe(lambda: machine(1), Filesystem(proc=tmp_path, dev=tmp_path)).look()

    assert why.value.reason == ABSENT


def test_a_driver_without_its_library_is_said_and_not_tried_again(
    watch: Callable[[Callable[[], Nvml]], Watcher], until: Until
) -> None:
    """A container without the utility capability."""
    watcher = watch(lambda: FakeNvml(refusal=Refused(LIBRARY_NOT_FOUND, "NVML Shared Library Not Found")))

    def refused() -> bool:
        watcher.look()
        return watcher.probe.trouble is not None

    until(refused)

    trouble = watcher.probe.trouble
    assert trouble is not None
    assert "NVML Shared Library Not Found" in trouble.reason
    assert "utility" in trouble.advice
    watcher.look()
    assert watcher.seen == []


def test_a_bug_of_ours_is_said_and_does_not_come_again_and_again(
    watch: Callable[[Callable[[], Nvml]], Watcher], until: Until
) -> None:
    """A layer that answers with something impossible."""

    def open_nvml() -> FakeNvml:
        nvml = machine(1)
        nvml.cards[0].answers["nvmlDeviceGetUtilizationRates",] = {"gpu": "much"}
        return nvml

    watcher = watch(open_nvml)

    def refused() -> bool:
        watcher.look()
        return watcher.probe.trouble is not None

    until(refused)

    assert "internal error of the GPU sampler: TypeError" in str(watcher.probe.trouble)
    watcher.look()
    assert watcher.probe.sampler_pid == 0


@pytest.mark.parametrize(
    ("call", "told"), [("nvmlDeviceGetUtilizationRates", "sample"), ("gpm", "gpm"), ("processes", "processes")]
)
def test_a_call_that_never_comes_back_is_a_reading(
    watch: Callable[[Callable[[], Nvml]], Watcher], call: str, told: str
) -> None:
    """It names the call and the card and grows with time; the watcher has not waited for it."""
    watcher = watch(blocking_in(call))
    watcher.until(Gpu, 2)
    first, *others, last = watcher.until(GpuSilence, 4, later=0.8)

    assert isinstance(first, GpuSilence)
    assert isinstance(last, GpuSilence)
    assert (first.call, first.uuid) == (told, "GPU-00000001")
    assert "S" in {one.state for one in (first, *others, last) if isinstance(one, GpuSilence)}
    assert first.waited_seconds < last.waited_seconds
    assert watcher.probe.trouble is not None
    assert watcher.longest < 1.0


def test_starting_the_driver_may_take_longer_than_a_sample(watch: Callable[[Callable[[], Nvml]], Watcher]) -> None:
    """Without persistence mode cards are woken first: patience, then silence."""
    watcher = watch(blocking_in("card"))
    (silence,) = watcher.until(GpuSilence, later=1.0)

    assert isinstance(silence, GpuSilence)
    assert silence.call == "init"
    assert silence.waited_seconds > 20


def test_a_new_sampler_is_tried_and_the_readings_come_back(
    watch: Callable[[Callable[[], Nvml]], Watcher], tmp_path: Path
) -> None:
    """When the driver answers again, the trouble is over."""
    watcher = watch(blocking_in("gpm", tmp_path / "met"))
    watcher.until(GpuSilence, later=0.8)
    watcher.ahead += GIVE_UP_SECONDS
    watcher.until(GpuActivity, 4)

    assert watcher.probe.trouble is None


def test_a_driver_that_stays_silent_is_asked_by_one_process_at_a_time(
    watch: Callable[[Callable[[], Nvml]], Watcher],
) -> None:
    """Each new one waits too; the silence is counted from its beginning."""
    watcher = watch(blocking_in("gpm"))
    *_, last = watcher.until(GpuSilence, 30, later=2.0)

    assert isinstance(last, GpuSilence)
    assert last.waited_seconds > 2 * GIVE_UP_SECONDS
    assert len([pid for pid in children() if name(pid) == "perfwatch-gpu"]) <= 2  # one of them may be dying


def test_a_sampler_that_is_killed_is_replaced(watch: Callable[[Callable[[], Nvml]], Watcher], until: Until) -> None:
    """The first to go when memory runs out; it is not started again at once."""
    watcher = watch(lambda: machine(1))
    watcher.until(GpuActivity)
    first = watcher.sampler
    os.kill(first, signal.SIGKILL)

    def noticed() -> bool:
        watcher.look()
        return watcher.probe.trouble is not None

    until(noticed)
    watcher.seen.clear()
    watcher.until(GpuActivity, later=0.5)

    assert watcher.sampler != first
    assert watcher.probe.trouble is None


def test_a_card_that_is_lost_when_a_new_sampler_comes_keeps_its_name(
    watch: Callable[[Callable[[], Nvml]], Watcher], tmp_path: Path
) -> None:
    """That one cannot ask it; the one before it could."""

    def open_nvml() -> FakeNvml:
        nvml = machine(2)
        nvml.cards[1].lost = (tmp_path / "met").exists()
        (tmp_path / "met").touch()
        return nvml

    watcher = watch(open_nvml)
    watcher.until(GpuSample, 2)
    os.kill(watcher.sampler, signal.SIGKILL)
    told = watcher.until(Gpu, 4, later=0.5)

    assert [(one.uuid, one.lost) for one in told if isinstance(one, Gpu)] == [
        ("GPU-00000000", False), ("GPU-00000001", False), ("GPU-00000000", False), ("GPU-00000001", True),
    ]  # fmt: skip


def test_the_sampler_holds_nothing_of_ours(watch: Callable[[Callable[[], Nvml]], Watcher], tmp_path: Path) -> None:
    """Two pipes and /dev/null; the first to go when memory runs out; no CUDA library, hence no context."""
    ours = (tmp_path / "ours").open("w")
    watcher = watch(lambda: machine(1))
    watcher.until(GpuSample)
    proc = Path(f"/proc/{watcher.sampler}")
    held = {os.readlink(link) for link in (proc / "fd").iterdir()}
    ours.close()

    assert all(target == "/dev/null" or target.startswith("pipe:") for target in held)
    assert (proc / "oom_score_adj").read_text().strip() == "1000"
    assert "libcuda" not in (proc / "maps").read_text()


def test_the_sampler_dies_with_the_watcher(tmp_path: Path, until: Until) -> None:
    """Also when the watcher is killed."""
    (tmp_path / "nvidiactl").touch()
    program = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from tests.nvml_layer import machine
probe = GpuProbe(lambda: machine(1), Filesystem(dev=Path({str(tmp_path)!r})))
while not probe.look():
    probe.wait(1)
print(Path(f"/proc/self/task/{{os.getpid()}}/children").read_text(), flush=True)
sys.stdin.read()
"""
    watcher = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout is not None
    sampler = int(watcher.stdout.readline())
    assert name(sampler) == "perfwatch-gpu"
    watcher.kill()
    watcher.communicate()

    until(lambda: name(sampler) != "perfwatch-gpu")


def children() -> list[int]:
    """Of this process."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def name(pid: int) -> str:
    """As ps shows it; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
