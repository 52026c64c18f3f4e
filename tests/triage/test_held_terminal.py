"""A terminal that takes no more (Ctrl-S) is told from one at which somebody should type."""

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from tests.recorded import RECORDINGS, load_case

CASES = RECORDINGS / "blocked_pipe" / "fires"


@pytest.mark.parametrize(
    ("case", "writer"),
    [
        ("held_terminal", "main thread of pid 14227 at train (train.py:16) writes to the terminal /dev/pts/0 (stdout)"),
        (
            "held_terminal_behind_a_lock",
            "thread watch of pid 14685 at watch (train2.py:17) writes to the terminal /dev/pts/0",
        ),
    ],
)
def test_who_writes_to_a_held_terminal_is_named_with_the_key_that_lets_it_go_on(case: str, writer: str) -> None:
    """Nobody is asked to type an answer; in the second case the training thread waits for the lock that the writer holds."""
    verdict = diagnose(load_case(CASES / case), expected_of(CASES / case).at)

    assert verdict.summary.startswith(writer)
    assert "takes no more: Ctrl-S was typed there" in verdict.summary
    assert verdict.next[0].startswith("press Ctrl-Q in the job's terminal")
    assert "type" not in verdict.next[0].split()
