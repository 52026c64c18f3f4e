"""``capture ncu``: the door of the agent is opened for as many steps as asked, and shut whatever happens."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch.captures import ncu
from perfwatch.captures.capture import Request, Scene, Subject
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable
from perfwatch_probes.agent_folder import AgentFolder
from tests.captures.windows import RecordedWindow, scene

SUBJECT = Subject(pid=700, start_ticks=1, rank=0)
LINE = '==PROF== Profiling "nvjet_sm90": 0%....50%....100% - 1 pass\n'


class Job:
    """A trainer and its agent: while somebody waits it makes a step, and measures those in which the range is open."""

    def __init__(self, folder: Path, slow: bool = False, error: str = "") -> None:
        self.place, self.log, self._slow, self._error = folder, folder / "ncu.log", slow, error
        self.log.touch()
        self.steps, self.measured, self._open = 10, 0, False
        self._write()

    def step(self) -> None:
        """One step, then the agent's look at the door."""
        if self._slow:
            return
        self.steps += 1
        if self._open:
            self.measured += 1
            with self.log.open("a") as log:
                log.write(self._error or 3 * LINE)
        self._open = (self.place / "kernels-700").exists()
        self._write()

    def _write(self) -> None:
        page = bytearray(4096)
        now = time.monotonic_ns()
        struct.pack_into("<8sIIQQ", page, 0, b"PWSTEPS2", 700, 168, 1, now)
        for number in range(1, self.steps + 1):
            struct.pack_into("<QQQ", page, 64 + 24 * (number % 168), now, 700, number)
        (self.place / "steps-700").write_bytes(page)

    def scene(self) -> Scene:
        """As a capture gets it."""
        facts = {
            "ncu": "/opt/ncu",
            "version": "2025.3.1",
            "report": str(self.place / "k.ncu-rep"),
            "log": str(self.log),
        }
        named = {"PERFWATCH_NCU": "/opt/ncu"}
        return scene(SUBJECT, armed={"ncu": facts}, place=AgentFolder(self.place), environment=named)


class Window(RecordedWindow):
    """Each wait lets the job make a step."""

    def __init__(self, folder: Path, step: Callable[[], None]) -> None:
        super().__init__(folder)
        self._step = step

    def wait(self, seconds: float) -> None:
        """A step, and ten seconds."""
        self._step()
        self.now += 10.0


@pytest.mark.parametrize("steps", [1, 3])
def test_as_many_steps_as_asked_are_measured_and_the_door_is_shut(tmp_path: Path, steps: int) -> None:
    """The report comes when the job ends, and its place is told."""
    job = Job(tmp_path)
    brought = ncu.collect(Request(kind="ncu", steps=steps), job.scene(), Window(tmp_path / "w", job.step))
    job.step()

    assert job.measured == steps
    assert not (tmp_path / "kernels-700").exists()
    assert brought.notes == (
        f"{3 * steps} kernels were measured",
        f"ncu writes its report when the job ends: then perfwatch kernels {tmp_path / 'k.ncu-rep'}",
    )


def test_a_job_that_makes_no_step_any_more_is_left_with_a_shut_door(tmp_path: Path) -> None:
    """And not waited for longer than two minutes."""
    job = Job(tmp_path, slow=True)
    with pytest.raises(CaptureFailed, match="did not end within 2 min 00 s"):
        ncu.collect(Request(kind="ncu"), job.scene(), Window(tmp_path / "w", job.step))

    assert not (tmp_path / "kernels-700").exists()


def test_what_ncu_says_of_its_failure_is_passed_on(tmp_path: Path) -> None:
    """Not "no kernel", but why."""
    job = Job(tmp_path, error="==ERROR== Failed to profile kernel: out of memory\n")
    with pytest.raises(CaptureFailed, match="Failed to profile kernel: out of memory"):
        ncu.collect(Request(kind="ncu"), job.scene(), Window(tmp_path / "w", job.step))


def test_a_job_without_steps_cannot_open_the_window(tmp_path: Path) -> None:
    """The agent looks at the door after optimizer steps."""
    job = Job(tmp_path)
    (tmp_path / "steps-700").unlink()
    with pytest.raises(CaptureFailed, match="no optimizer step"):
        ncu.collect(Request(kind="ncu"), job.scene(), Window(tmp_path / "w", job.step))


@pytest.mark.live
def test_what_must_not_or_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    """Not armed, hung, without bound; with what to do instead."""
    armed = Job(tmp_path).scene().armed
    with pytest.raises(CaptureUnavailable, match="not started under ncu") as raised:
        ncu.available(Request(kind="ncu"), scene(environment={"PERFWATCH_NCU": str(tmp_path / "none")}))
    assert "perfwatch ncu -- COMMAND" in raised.value.advice
    with pytest.raises(CaptureRefused, match="hangs"):
        ncu.available(Request(kind="ncu"), scene(armed=armed, suspected="hung"))
    with pytest.raises(CaptureRefused, match="20 at most"):
        ncu.available(Request(kind="ncu", steps=500), scene(armed=armed))
