"""What was recorded survives whatever ends the watch: kill -9 of all that is ours at once, and the OOM killer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.recording.recording import Recording, load
from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, StartJob, needs_root, until

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]
BEHIND_SECONDS = 3.0  # a calm or suspect job is looked at each second; the machine may be busy
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 400 * 2**20
# Takes memory until somebody stops it, slowly enough for a look or two; says so first.
GREEDY = """
import time
print("ready", flush=True)
hoard = []
while True:
    hoard.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.02)
"""


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in family(int(child)))]


def readings_in(session: Path) -> int:
    """Lines of readings so far."""
    return sum(path.read_bytes().count(b"\n") for path in session.glob("readings-*.jsonl"))


def behind(recording: Recording, ended: float) -> float:
    """Seconds between the last reading and this unix time."""
    return ended - (recording.session.created + recording.records[-1].at)


def test_kill_9_of_everything_of_ours_costs_the_last_moment_at_most(job: StartJob, tmp_path: Path) -> None:
    """Watcher, writer, readers: all at once. What they had read can be loaded and judged, and the job goes on."""
    trainer = job(workers=1)
    session = tmp_path / "s"
    watch = (*PERFWATCH, "attach", str(trainer.pid), "--watch", "--session", str(session))
    with subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as attached:
        until(lambda: readings_in(session) > 100)
        for pid in family(attached.pid):
            os.kill(pid, signal.SIGKILL)
        killed = time.time()
        attached.wait(PATIENCE_SECONDS)
    recording = load(session)
    judged = subprocess.run((*PERFWATCH, "replay", str(session), "--json"), capture_output=True, text=True, timeout=60)

    assert len(recording.records) > 100
    assert behind(recording, killed) < BEHIND_SECONDS
    assert recording.skipped <= 2  # a line that the writer had half written, in each stream
    assert '"schema":"perfwatch.verdict/2"' in judged.stdout
    assert trainer.steps() >= 0


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, removed afterwards."""
    folder = MEMORY / f"perfwatch-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text().split())
    folder.rmdir()


@needs_root()
def test_what_was_read_before_the_oom_killer_came_is_there(group: Path, tmp_path: Path) -> None:
    """It takes perfwatch first, as perfwatch has asked for, and then the job; the session tells of both."""
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    command = (*PERFWATCH, "run", "--session", str(tmp_path / "s"), "--", sys.executable, "-c", GREEDY)
    done = subprocess.run(
        ("sh", "-c", enter, "sh", *command), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    killed = time.time()
    recording = load(tmp_path / "s")

    assert done.returncode == -signal.SIGKILL
    assert recording.records
    assert behind(recording, killed) < BEHIND_SECONDS
