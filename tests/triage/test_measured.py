"""While ncu measures the job, which stands still for it, perfwatch does not call that a hang."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import CaptureWindow
from tests.recorded import RECORDINGS, load_case

DEADLOCK = RECORDINGS / "deadlocked_locks" / "fires" / "deadlocked_locks"


@pytest.mark.parametrize(
    ("kind", "at_work", "ago_seconds", "state"),
    [
        ("ncu", True, 30.0, "inconclusive"),
        ("ncu", False, 5.0, "inconclusive"),
        ("ncu", False, 400.0, "hung"),
        ("torch", True, 30.0, "hung"),
    ],
)
def test_a_job_that_ncu_measures_is_not_called_hung(kind: str, at_work: bool, ago_seconds: float, state: str) -> None:
    """Nor until it steps again, or for minutes; a window of torch's own profiler stops nobody."""
    recording, at = load_case(DEADLOCK), expected_of(DEADLOCK).at
    window = Record(at=at - ago_seconds, reading=CaptureWindow(kind=kind, at_work=at_work))
    verdict = diagnose(replace(recording, records=(window, *recording.records)), at)

    assert verdict.state == state
    assert ("ncu measures the job" in verdict.summary) == (state == "inconclusive")
