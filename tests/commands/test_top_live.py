"""``perfwatch top PID``: of a job that nobody watches, and of one that is watched."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands.test_top import once
from tests.terminals import EVERY_SECONDS, PATIENCE_SECONDS, environment

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]


def test_a_job_that_nobody_watches_is_watched_while_the_screen_is_open(tmp_path: Path) -> None:
    """A screen of it comes, the recording stays, and no watcher of ours is left."""
    job = subprocess.Popen(
        [sys.executable, "-c", "import time\nprint('ready', flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        done = once(str(job.pid), "--once", PERFWATCH_DIR=str(tmp_path), COLUMNS="100", LINES="30")
    finally:
        job.kill()
        job.wait()

    assert done.returncode == 0
    assert "attach on" in done.stdout
    (folder,) = tmp_path.iterdir()
    assert (folder / "session.json").exists()


def test_a_job_that_is_watched_is_seen_through_its_watchers_recording(tmp_path: Path) -> None:
    """No second watcher, no second recording."""
    program = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    run = subprocess.Popen(
        [sys.executable, "-m", "perfwatch", "run", "--quiet", "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "PERFWATCH_DIR": str(tmp_path)},
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        ends = time.monotonic() + PATIENCE_SECONDS
        while not list(tmp_path.glob("*/readings*.jsonl")) and time.monotonic() < ends:
            time.sleep(EVERY_SECONDS)
        done = once(str(run.pid), PERFWATCH_DIR=str(tmp_path), COLUMNS="100", LINES="30")
    finally:
        run.terminate()
        run.wait()

    assert (done.returncode, done.stderr) == (0, "")
    assert "run on" in done.stdout
    assert len(list(tmp_path.iterdir())) == 1
