"""A task that never returns gives nobody a result: who waits for a pool does not wait for the service that runs in another one."""

from pathlib import Path

import pytest

from perfwatch.probes.readings import Reading, SourceLine, Stack
from perfwatch.recording import load
from tests.triage.retold import retold

CASE = Path(__file__).parent / "recordings" / "deadlocked_locks" / "lookalike" / "pool_that_may_wait_for_another_pool"
FILE = next(
    frame.file
    for one in load(CASE).records
    if isinstance(one.reading, Stack)
    for frame in one.reading.frames
    if frame.file.endswith("p01_triplets.py")
)


def same(reading: Reading) -> Reading:
    """As it was recorded."""
    return reading


@pytest.mark.parametrize(("endless", "state"), [(True, "hung"), (False, "inconclusive")])
def test_a_pool_that_waits_for_itself_is_told_beside_a_service_of_another_pool(endless: bool, state: str) -> None:
    """By the text of the other one's loop; if that may be left, what it brings may be waited for."""
    service = SourceLine(file=FILE, line=57, text="time.sleep(0.05)", loops=("while",), endless=endless)

    verdict = retold(CASE, same, service)

    assert verdict.state == state
    if endless:
        assert verdict.cause == "deadlocked_locks"
        assert {one.frame for one in verdict.culprits} == {"mined_pair (p01_triplets.py:34)"}
