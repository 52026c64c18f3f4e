"""``capture torch`` of a job whose profiler was armed after its first steps, as under ``run`` where there is a GPU."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.captures.test_torch_live import ALONE, capture, spans, start

pytestmark = pytest.mark.live

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


@pytest.mark.alone
def test_steps_are_counted_for_a_profiler_that_was_armed_after_some_of_them(tmp_path: Path) -> None:
    """Torch counts them by itself only where it was armed at its import: five steps were a window of half a second otherwise.

    That is a hundred steps and more; the few that may come after the five are of torch's own thread, which ends the window as soon as it
    gets a CPU: on a crowded machine that were hundreds.
    """
    fifo = tmp_path / "late"
    os.mkfifo(fifo)
    armed_late = ("env", "-u", "KINETO_USE_DAEMON", "PERFWATCH_PROFILER=1")
    command = (*armed_late, "sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE), "later")
    with start(
        tmp_path, fifo, sys.executable, "-m", "perfwatch", "run", "--session", str(tmp_path / "t"), "--", *command
    ) as run:
        assert run.line() == "1 unset"
        assert run.line() == "training"
        answer = capture("--session", str(tmp_path / "t"), "--steps", "5")

        assert answer.code == 0, answer.err
        assert 5 <= len(spans(answer.report["files"][0])) <= 30
        assert run.end() == 0
