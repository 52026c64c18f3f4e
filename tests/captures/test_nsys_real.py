"""``capture nsys`` with the nsys of this machine: the job stays its own, and outlives all of nsys."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from perfwatch.captures import nsys
from perfwatch.captures.capture import Request
from perfwatch.captures.nsight import nsys_session
from perfwatch.captures.nsight.finding import Tool, find
from perfwatch.errors import PerfwatchError
from perfwatch.processes.armed import read_armed
from perfwatch.processes.place import Place, enter
from perfwatch.processes.programs import run_program
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.external import Finished
from tests.captures.windows import RecordedWindow, scene

pytestmark = pytest.mark.live


def real_nsys() -> Tool | None:
    """The nsys of this machine."""
    try:
        return find("nsys", os.environ, run_program)
    except PerfwatchError:
        return None


REAL = real_nsys()
needs_nsys = pytest.mark.skipif(REAL is None, reason="nsys is not installed here (.ci/install_packages tries)")


def session_of(place: Place, stop: "subprocess.Popen[bytes]") -> tuple[dict[str, str], dict[str, str]]:
    """A session that ends with ``stop``: the job's environment, and what captures are told."""
    environment = nsys_session.arm({**os.environ}, place.folder, run_program, launcher=stop.pid)
    return environment, read_armed(AgentFolder(place.folder))["nsys"]


@pytest.fixture
def stop() -> Iterator["subprocess.Popen[bytes]"]:
    """In the place of ``perfwatch run``: a process that ends when it is told to."""
    one = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield one
    one.communicate()


def left(session: str) -> list[int]:
    """The processes of a session."""
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and session in _command_line(entry)
    ]


@needs_nsys
@pytest.mark.end_to_end
def test_two_windows_of_the_real_nsys_on_a_job_that_is_not_in_its_hands(
    tmp_path: Path, stop: "subprocess.Popen[bytes]"
) -> None:
    """The job keeps its own streams, session and exit code; two reports come; nothing of nsys stays behind."""
    place = enter(dict(os.environ), (tmp_path,))
    environment, facts = session_of(place, stop)
    job = subprocess.Popen(
        [sys.executable, "-c", "import os, sys; print(os.getsid(0), flush=True); sys.stdin.readline(); sys.exit(7)"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    place.register(job.pid)
    assert job.stdout is not None
    assert int(job.stdout.readline()) == os.getsid(0)
    assert "CUDA_INJECTION64_PATH=" in Path(f"/proc/{job.pid}/environ").read_text()
    assert "LD_PRELOAD=" not in Path(f"/proc/{job.pid}/environ").read_text()

    for number in (1, 2):
        window = RealWindow(tmp_path / f"w{number}")
        armed = scene(armed={"nsys": facts}, environment=dict(os.environ))
        brought = nsys.collect(Request(kind="nsys", seconds=0.2), armed, window)
        assert len(brought.files) == 1
        assert brought.files[0].size_bytes > 10_000

    job.communicate("\n", timeout=30)
    assert job.returncode == 7
    stop.communicate()
    place.leave()
    ends = time.monotonic() + 40
    while (left(facts["session"]) or Path(facts["tmpdir"]).exists()) and time.monotonic() < ends:
        time.sleep(0.05)
    assert left(facts["session"]) == []
    assert not Path(facts["tmpdir"]).exists()


class RealWindow(RecordedWindow):
    """Runs what it is given, and waits."""

    def run(self, command: object, deadline_seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
        """For real."""
        return run_program(command, deadline_seconds, environment)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        """For real."""
        time.sleep(seconds)


@needs_nsys
@pytest.mark.end_to_end
def test_the_job_goes_on_when_nsys_is_killed(tmp_path: Path, stop: "subprocess.Popen[bytes]") -> None:
    """All of it, at once: agent, launcher and placeholder; and what the job starts afterwards starts."""
    place = enter(dict(os.environ), (tmp_path,))
    environment, facts = session_of(place, stop)
    job = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; sys.stdin.readline(); sys.exit(subprocess.call(['sh', '-c', 'exit 7']))",
        ],
        env=environment,
        stdin=subprocess.PIPE,
    )
    place.register(job.pid)
    assert left(facts["session"])
    for pid in left(facts["session"]):
        os.kill(pid, signal.SIGKILL)

    job.communicate(b"\n", timeout=30)
    assert job.returncode == 7
    place.leave()
    shutil.rmtree(facts["tmpdir"])  # whose keeper was killed with the rest


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
