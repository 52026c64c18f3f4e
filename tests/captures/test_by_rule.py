"""``run --capture-on``: a verdict opens a window by itself, of a real run that is slow."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.recording.recording import CAPTURE_BEGUN, load
from tests.end_to_end.conftest import PERFWATCH, until

pytestmark = pytest.mark.live

if importlib.util.find_spec("torch") is None:  # not imported here: this process would look like a job
    pytest.skip("torch is not installed", allow_module_level=True)


def test_a_slow_verdict_opens_one_window_of_the_armed_profiler(repository: Path, tmp_path: Path) -> None:
    """The recording says who asked; the trace is there, and is read as evidence."""
    drill = repository / "launcher" / "perfwatch" / "drills" / "programs" / "serial_loading.py"
    session = tmp_path / "session"
    run = subprocess.Popen(
        [*PERFWATCH, "run", "--capture-on", "slow", "--session", str(session), "--", sys.executable, str(drill)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def captured() -> bool:
        return (session / "session.json").exists() and any(one.kind == "capture" for one in load(session).events)

    try:
        until(captured)
    finally:
        run.terminate()
        run.wait()
    recording = load(session)
    begun = [one.text for one in recording.events if one.kind == CAPTURE_BEGUN]
    (outcome,) = (one.facts for one in recording.events if one.kind == "capture")

    assert begun == ["torch capture, asked by a rule"]
    assert outcome["error"] == ""
    assert [Path(file["path"]).suffixes[-2:] for file in outcome["files"]] == [[".json", ".gz"]]
    assert any(type(one.reading).__name__ == "TorchTrace" for one in recording.records)
