"""Processes that are stopped from outside: rationed, or measured by ncu."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.rules.processes import stopped
from perfwatch.verdict import Finding
from perfwatch_probes.readings import CaptureWindow, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.rank_looks import FIRST, LOOK_SECONDS, STEP, STOPPED, job, looks

# A process that is stopped and let go on ten times a second (``cpulimit``) is stopped at every look, and hangs at none.


RATIONED_UNTIL = STOPPED + 20.0
IN_PHASE_SECONDS = 0.06  # since it last ran, at each look


def judged(at: float, share: float) -> Finding | None:
    """A rank in one native line that gets this share of a core until it is stopped for good."""
    history = job(1)
    for look in looks(STOPPED, at):
        ran = 5.0 + share * (min(look, RATIONED_UNTIL) - STOPPED)
        ago = IN_PHASE_SECONDS + max(0.0, look - RATIONED_UNTIL)
        history.add(look, Thread(pid=FIRST, tid=FIRST, name="python", state="T", cpu_seconds=ran, run_seconds=ran,
                                 voluntary_switches=int(10 * ran), ran_ago_seconds=ago))  # fmt: skip
        history.add(look, Stack(pid=FIRST, tid=FIRST, frames=STEP[0], samples=10, span_seconds=LOOK_SECONDS))
    history.at = at
    found = stopped(Case(history, session(root_pids=(FIRST,))))
    return found if isinstance(found, Finding) else None


@pytest.mark.parametrize("seconds", [2.0, 5.0, 20.0])
def test_one_that_runs_between_two_looks_is_not_stopped(seconds: float) -> None:
    """Its run time has grown: whoever is stopped does not run."""
    assert judged(STOPPED + seconds, share=0.5) is None


def test_one_that_is_let_go_on_no_more_is_stopped() -> None:
    """For as long as its run time has stood, and not since its first pause."""
    found = judged(RATIONED_UNTIL + 6.0, share=0.5)

    assert found is not None
    assert found.decides_in_seconds == 0
    assert found.silent_seconds == pytest.approx(6.0, abs=LOOK_SECONDS)


def test_one_that_never_ran_in_between_is_stopped_at_the_second_sighting() -> None:
    """As ever."""
    found = judged(STOPPED + 2.0, share=0.0)

    assert found is not None
    assert found.decides_in_seconds == 0


# While ncu measures the job, which stands still for it, perfwatch does not call that a hang.


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
    assert ("ncu is measuring the job" in verdict.summary) == (state == "inconclusive")
