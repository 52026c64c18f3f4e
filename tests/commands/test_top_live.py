"""``perfwatch top PID``: of a job that nobody watches, and of one that is watched."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands.test_top import once
from tests.terminals import EVERY_SECONDS, PATIENCE_SECONDS, TMUX, environment, terminal

MOST_WATCHED = 30  # jobs of this user on this machine, while the suite runs

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


@pytest.mark.alone  # the watchers of other tests would be among the jobs
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_a_key_goes_from_one_watched_job_to_the_next(tmp_path: Path) -> None:
    """Other jobs that this user watches on the machine are among them; after the last comes the first."""
    programs = [
        "import time\nprint('ready', flush=True)\ntime.sleep(90)  # first",
        "import time\nprint('ready', flush=True)\ntime.sleep(91)",
    ]
    home = {**environment(), "PERFWATCH_DIR": str(tmp_path / "home")}
    runs = []
    try:
        for text in programs:
            command = [sys.executable, "-m", "perfwatch", "run", "--quiet", "--", sys.executable, "-c", text]
            runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=home))
            assert runs[-1].stdout is not None
            assert runs[-1].stdout.readline() == "ready\n"
        with terminal(tmp_path, 160, 40, "top", str(runs[0].pid), PERFWATCH_DIR=str(tmp_path / "home")) as window:
            window.until(lambda screen: "sleep(90)" in screen[0])
            place = ""
            for _ in range(MOST_WATCHED):
                window.keys("Tab")
                seen = window.until(lambda screen: place_of(screen) not in ("", place))  # noqa: B023
                if "sleep(91)" in seen[0]:
                    break
                place = place_of(seen)
            assert "sleep(91)" in seen[0]
            assert re.search(r"job \d+ of \d+  for ", seen[0])
            window.keys("q")
            window.until(lambda screen: screen[0] == "ended with 0")
    finally:
        for run in runs:
            run.terminate()
            run.wait()


def place_of(screen: list[str]) -> str:
    """Which of the watched jobs it shows: ``job 2 of 3``."""
    found = re.search(r"job \d+ of \d+", screen[0])
    return found[0] if found else ""
