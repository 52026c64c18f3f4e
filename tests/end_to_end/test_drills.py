"""perfwatch on real sick programs, as a user asks: a few drills of each kind; ``perfwatch drill --all`` runs the rest.

No sleep is ever "long enough": each program says over a FIFO when its fault begins.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfwatch.drills import DRILLS
from perfwatch.gauntlet.attempt import Attempt, run_attempt
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.needs import unmet

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(find_spec("torch") is None, reason="the programs need torch: pip install 'perfwatch[torch]'"),
]
# At least one for each way in which a wait can end, for ranks, for both ways in, and programs that must not be accused.
TRIED = (
    "stopped",
    "waiting_for_input",
    "dead_worker",
    "deadlocked_locks",
    "blocked_pipe",
    "stuck_worker",
    "blocked_network",
    "stalled_collective",
    "stalled_collective-four",
    "finished",
    "crashed",
    "busy_native_call",
    "healthy_key_listener",
)
BY_NAME = {drill.name: drill for drill in DRILLS}


@pytest.mark.parametrize("name", TRIED)
def test_a_real_program_gets_the_right_verdict(name: str, tmp_path: Path) -> None:
    """State and cause are right, nothing of the job is left traced, and nothing of it is left running."""
    drill = BY_NAME[name]
    if (reason := unmet(drill.needs)) is not None:
        pytest.skip(reason)

    row, _ = run_attempt(Attempt(drill, "loud", 0), Conditions(folder=tmp_path, python=sys.executable))

    assert (row.broken, row.fault) == (None, None)
    assert row.right, f"said {row.state}/{row.cause} ({row.confidence}): {row.summary}"


@pytest.mark.parametrize("name", ["stuck_worker", "stopped"])
def test_a_program_started_under_run_gets_the_right_verdict(name: str, tmp_path: Path) -> None:
    """The other way in: the launcher watches from the start and says what it sees."""
    conditions = Conditions(folder=tmp_path, python=sys.executable, mode="run")

    row, _ = run_attempt(Attempt(BY_NAME[name], "loud", 0), conditions)

    assert (row.broken, row.fault) == (None, None)
    assert row.right, f"said {row.state}/{row.cause} ({row.confidence}): {row.summary}"
