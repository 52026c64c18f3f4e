"""Locks on files: workers that have one in turn, and one that a child inherited with the opening."""

import msgspec
import pytest

from perfwatch_probes.readings import Descriptor, Reading
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASE = RECORDINGS / "contended_lock" / "fires" / "table_that_workers_lock"


@pytest.mark.parametrize(
    ("holders", "cause"),
    [(None, "contended_lock"), ((1,), "starved_by_transforms"), ((), "starved_by_transforms")],
    ids=["in turn", "somebody else", "nobody"],
)
def test_workers_that_lock_a_file_in_turn_are_told(holders: tuple[int, ...] | None, cause: str) -> None:
    """Somebody outside of the job who keeps it is no turn."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or holders is None:
            return reading
        return msgspec.structs.replace(reading, lock_holders=holders)

    verdict = retold(CASE, changed)

    assert (verdict.state, verdict.cause) == ("slow", cause)
    assert holders is not None or "in turn for a lock on /home/user/runs/photos.db" in verdict.summary


FORKED = RECORDINGS / "waiting_for_file" / "fires"
ADVICE = "take the lock once"


def test_a_lock_that_a_fork_may_hold_is_not_said_to_be_taken_twice() -> None:
    """The child is uploading under it; flock belongs to the opening, which both share."""
    verdict = retold(FORKED / "lock_that_a_fork_inherited")

    assert "held by its own process, or one that was forked from it with the file open" in verdict.summary
    assert not any(ADVICE in one for one in verdict.next)


def test_where_nobody_shares_the_opening_it_is() -> None:
    """Nobody but the process itself could let go."""
    verdict = retold(FORKED / "lock_file_opened_twice")

    assert "its own process, which has opened the file twice" in verdict.summary
    assert any(ADVICE in one for one in verdict.next)
