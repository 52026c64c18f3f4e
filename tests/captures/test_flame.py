"""``capture flame``: a rank and its workers are recorded by the real py-spy, without being stopped."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from perfwatch.captures import flame
from perfwatch.captures.capture import Request, Subject
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.processes.place import start_ticks
from perfwatch.processes.programs import run_program
from perfwatch_probes.external import Finished
from perfwatch_probes.stacks import left_traced
from tests.captures.windows import RecordedWindow, scene

PROGRAM = """
import os, sys, time
def child():
    while True: sum(range(1000))
def train():
    print(worker, flush=True)
    while True: time.sleep(0.01)
worker = os.fork()
child() if worker == 0 else train()
"""


@pytest.fixture
def subject() -> Iterator[Subject]:
    """A rank that sleeps, with a worker that computes."""
    job = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    worker = int(job.stdout.readline())
    yield Subject(job.pid, start_ticks(job.pid) or 0, rank=2, workers=(worker,))
    os.kill(worker, 9)
    job.kill()
    job.wait()


class RealWindow(RecordedWindow):
    """Runs what it is given, and waits."""

    def run(
        self, command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """For real."""
        return run_program(command, deadline_seconds, environment)

    def wait(self, seconds: float) -> None:
        """For real; the clock is the real one as well."""
        time.sleep(seconds)
        self.now += seconds


class Drawn(RecordedWindow):
    """A py-spy that draws at once."""

    def run(
        self, command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Something at the place where it is wanted."""
        Path(command[-3]).write_text("a graph")
        return super().run(command, deadline_seconds, environment)


@pytest.mark.live
@pytest.mark.end_to_end
def test_a_rank_and_its_worker_are_recorded_without_being_stopped(subject: Subject, tmp_path: Path) -> None:
    """A flame graph and a speedscope profile of each, with the functions that they were in; idle ones too."""
    window = RealWindow(tmp_path / "w")
    brought = flame.collect(Request(kind="flame", seconds=1, options={"rate": "20"}), scene(subject), window)

    assert sorted(Path(file.path).name for file in brought.files) == [
        f"rank2-worker{subject.workers[0]}.speedscope.json",
        f"rank2-worker{subject.workers[0]}.svg",
        "rank2.speedscope.json",
        "rank2.svg",
    ]
    assert "train" in (window.folder / "rank2.svg").read_text()
    frames = json.loads((window.folder / f"rank2-worker{subject.workers[0]}.speedscope.json").read_text())["shared"]
    assert "child" in {frame["name"] for frame in frames["frames"]}
    assert left_traced(subject.pid) == left_traced(subject.workers[0]) == []
    assert window.said[0] == "recording 0 of 1 s"


@pytest.mark.live
@pytest.mark.end_to_end
def test_a_worker_that_has_ended_is_a_note_and_a_rank_that_has_ended_an_error(tmp_path: Path, subject: Subject) -> None:
    """What could be recorded is brought."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with_a_gone_worker = Subject(subject.pid, subject.start_ticks, rank=2, workers=(gone.pid,))
    request = Request(kind="flame", seconds=1)

    brought = flame.collect(request, scene(with_a_gone_worker), RealWindow(tmp_path / "w"))
    assert brought.notes == (f"nothing of worker {gone.pid}: it ended, or could not be read",)

    with pytest.raises(CaptureFailed, match=f"pid {gone.pid} is no more"):
        flame.collect(request, scene(Subject(gone.pid, 1, rank=0)), RealWindow(tmp_path / "v"))


def test_what_it_would_run_never_stops_anybody(tmp_path: Path) -> None:
    """Nonblocking, bounded in rate and time, one process a call."""
    request = Request(kind="flame", seconds=3, options={"rate": "10"})
    commands = flame.command(request, scene(Subject(700, 1, rank=0, workers=(701,))), tmp_path)

    assert len(commands) == 4
    assert all("--nonblocking" in one and "--subprocesses" not in one for one in commands)
    assert all(one[one.index("--duration") + 1] == "3" and one[one.index("--rate") + 1] == "10" for one in commands)


RANKS = tuple(Subject(pid, 1, rank=rank, workers=(pid + 1,)) for rank, pid in enumerate((700, 710, 720)))


@pytest.mark.parametrize(
    ("request_", "blamed", "recorded", "says"),
    [
        (Request(kind="flame", pid=710), (720,), ["rank1"], "rank 1 of 3 ranks was recorded (PID 710 was given)"),
        (Request(kind="flame", pid=711), (), ["rank1"], "rank 1 of 3 ranks was recorded (PID 711 was given)"),
        (Request(kind="flame", pid=1), (720,), ["rank2"], "rank 2 of 3 ranks was recorded (it is the culprit)"),
        (Request(kind="flame"), (), ["rank0"], "rank 0 of 3 ranks was recorded (it is the first)"),
        (Request(kind="flame", pid=700, ranks=(1, 2)), (), ["rank1", "rank2"], ""),
    ],
)
def test_the_rank_that_is_meant_is_recorded_and_said(
    tmp_path: Path, request_: Request, blamed: tuple[int, ...], recorded: list[str], says: str
) -> None:
    """Named by number, else by a PID of it, else by the verdict."""
    window = Drawn(tmp_path / "w")
    brought = flame.collect(request_, scene(*RANKS, blamed=blamed), window)

    drawn = {Path(one.path).name.partition(".")[0] for one in brought.files}
    assert sorted(name for name in drawn if "-worker" not in name) == recorded
    assert [note.partition(";")[0] for note in brought.notes] == ([says] if says else [])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(kind="flame", seconds=3600), "60 s at most"),
        (Request(kind="flame", options={"rate": "9999"}), "from 1 to 200"),
        (Request(kind="flame", options={"rate": "fast"}), "from 1 to 200"),
        (Request(kind="flame", ranks=(9,)), "this machine has no rank of that number"),
    ],
)
def test_what_is_not_bounded_is_refused(request_: Request, says: str) -> None:
    """Before anything runs."""
    with pytest.raises(CaptureRefused, match=says):
        flame.available(request_, scene())
