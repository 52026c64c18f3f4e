"""The watch beside a job with a GPU: what is recorded, in which detail, and whose card it is."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfwatch.verdict import Verdict
from perfwatch.watching.watch import Watch
from perfwatch_probes import readings as r
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.nvml_layer import Listed
from tests.nvml_layer import FakeCard, FakeNvml, machine
from tests.sessions import session

pytestmark = pytest.mark.live

PATIENCE_SECONDS = 40.0
WORKING = """
import time
while True:
    sum(range(30_000))
    time.sleep(0.01)
"""


STANDS = "import threading; threading.Event().wait()"


class Blocking(FakeNvml):
    """A driver whose calls do not come back once a file is there: it lives in a process of its own, as the real one does."""

    blocked: Path

    def _reach(self, card: FakeCard, call: str) -> FakeCard:
        card.blocks_in = call if self.blocked.exists() else ""
        return super()._reach(card, call)


class Recorded:
    """Takes what a watch appends."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, r.Reading]] = []

    def append(self, at: float, readings: Sequence[r.Reading], known_at: float = 0.0) -> None:
        """Keep them with their time."""
        self.readings += [(at, one) for one in readings]

    def event(
        self, at: float, kind: str, text: str, verdict: Verdict | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Of no interest here."""

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Nor this."""

    def of(self, kind: type[r.Reading]) -> list[tuple[float, r.Reading]]:
        """Those of one kind."""
        return [(at, one) for at, one in self.readings if isinstance(one, kind)]


@pytest.fixture
def job() -> Iterator[int]:
    """A program that works a little, again and again, so that nothing about it is suspect."""
    program = subprocess.Popen([sys.executable, "-c", WORKING])
    yield program.pid
    program.kill()
    program.wait()


@pytest.fixture
def watched(job: int, tmp_path: Path) -> Iterator[Callable[[bool], tuple[Watch, Recorded]]]:
    """Starts to watch the job, suspicious or calm, on a machine with two cards; the job has a context on the second."""
    (tmp_path / "nvidiactl").touch()
    made: list[Watch] = []

    def start(eager: bool) -> tuple[Watch, Recorded]:
        nvml = machine(2)
        nvml.cards[1].processes = {"compute": [Listed(job, 2**30)]}
        recorded = Recorded()
        probe = GpuProbe(lambda: nvml, Filesystem(dev=tmp_path))
        made.append(Watch([job], session(root_pids=(job,)), recorder=recorded, eager=eager, gpus=probe))
        return made[-1], recorded

    yield start
    for one in made:
        one.close()


def tick_until(watch: Watch, condition: Callable[[], bool]) -> None:
    """Watch until something has been recorded."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(min(0.2, watch.tick()))


def test_a_suspect_job_gets_ten_samples_a_second_and_its_card(
    watched: Callable[[bool], tuple[Watch, Recorded]], job: int
) -> None:
    """Cards, samples, activities, processes, and that the job uses the second card, as the driver says."""
    watch, recorded = watched(True)
    tick_until(watch, lambda: len(recorded.of(r.GpuSample)) >= 30 and bool(recorded.of(r.GpuBinding)))
    tick_until(watch, lambda: len(recorded.of(r.GpuActivity)) >= 6)

    assert {one.uuid for _, one in recorded.of(r.Gpu) if isinstance(one, r.Gpu)} == {"GPU-00000000", "GPU-00000001"}
    bindings = [one for _, one in recorded.of(r.GpuBinding) if isinstance(one, r.GpuBinding) and one.pid == job]
    assert bindings[-1].uuids == ("GPU-00000001",)
    times = [at for at, one in recorded.of(r.GpuSample) if isinstance(one, r.GpuSample) and one.uuid == "GPU-00000001"]
    assert len(set(times)) == len(times), "each sample has the time at which it was made"


def test_a_calm_job_gets_one_sample_a_second(watched: Callable[[bool], tuple[Watch, Recorded]]) -> None:
    """Of each card."""
    watch, recorded = watched(False)
    tick_until(watch, lambda: len(recorded.of(r.GpuSample)) >= 6)
    times = [at for at, one in recorded.of(r.GpuSample) if isinstance(one, r.GpuSample) and one.uuid == "GPU-00000001"]

    assert watch.suspicious is False
    assert times[-1] - times[0] > 0.8 * (len(times) - 1)


def test_a_driver_that_stops_answering_beside_a_job_that_stands_is_named_and_the_watch_goes_on(tmp_path: Path) -> None:
    """The blocked call is in a child; the watcher keeps looking, and says for how long nobody has answered."""
    program = subprocess.Popen([sys.executable, "-c", STANDS])
    (tmp_path / "nvidiactl").touch()
    nvml = Blocking(machine(1).cards)
    nvml.blocked = tmp_path / "blocked"
    nvml.cards[0].processes = {"compute": [Listed(program.pid, 2**30)]}
    recorded = Recorded()
    probe = GpuProbe(lambda: nvml, Filesystem(dev=tmp_path))
    watch = Watch([program.pid], session(root_pids=(program.pid,)), recorder=recorded, eager=True, gpus=probe)
    try:
        tick_until(watch, lambda: len(recorded.of(r.GpuSample)) >= 3 and bool(recorded.of(r.GpuBinding)))
        nvml.blocked.touch()
        tick_until(watch, lambda: watch.verdict().cause == "driver_unresponsive")
        looks = len(recorded.of(r.Thread))
        tick_until(watch, lambda: len(recorded.of(r.Thread)) > looks)
    finally:
        watch.close()
        program.kill()
        program.wait()

    assert any("has not returned" in one.claim for one in watch.verdict().evidence)
