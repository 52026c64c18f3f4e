"""Workers that wait for a file's lock are told as what they are only where they have it in turn."""

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
