"""perfwatch on real sick programs, as a user asks: a hang, a stalled rank and a healthy program.

The gauntlet, ``perfwatch drill --all``, runs every drill, also under ``perfwatch run`` (``--mode run``).

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
    pytest.mark.live,
    pytest.mark.alone,
    pytest.mark.end_to_end,
    pytest.mark.skipif(find_spec("torch") is None, reason="the programs need torch"),
]
TRIED = ("dead_worker", "stalled_collective", "healthy_key_listener")
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
