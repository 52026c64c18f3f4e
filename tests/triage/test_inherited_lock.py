"""A lock on a file that a child inherited with the opening, while its parent opens the file again and waits for it."""

from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS / "waiting_for_file" / "fires"
ADVICE = "take the lock once"


def test_a_lock_that_a_fork_may_hold_is_not_said_to_be_taken_twice() -> None:
    """The child is uploading under it; flock belongs to the opening, which both share."""
    verdict = retold(CASES / "lock_that_a_fork_inherited")

    assert "held by its own process, or one that was forked from it with the file open" in verdict.summary
    assert not any(ADVICE in one for one in verdict.next)


def test_where_nobody_shares_the_opening_it_is() -> None:
    """Nobody but the process itself could let go."""
    verdict = retold(CASES / "lock_file_opened_twice")

    assert "its own process, which has opened the file twice" in verdict.summary
    assert any(ADVICE in one for one in verdict.next)
