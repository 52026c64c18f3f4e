"""A silent server of the job's own is named with its line, unless it waits for visitors."""

import msgspec

from perfwatch_probes.readings import Reading, Thread, Wait
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASE = RECORDINGS / "blocked_network" / "fires" / "server_of_its_own_that_polls"
SERVER = 28673
ACCEPTS = Wait(call="accept4", number=288, kind="accept", fd=3, forever=True)


def accepts(reading: Reading) -> Reading:
    """The server waits for somebody who connects."""
    if isinstance(reading, Thread) and reading.pid == SERVER:
        return msgspec.structs.replace(reading, wait=ACCEPTS)
    return reading


def test_the_line_at_which_the_server_of_the_job_stands_is_told() -> None:
    """It polls in a loop of the program's own."""
    assert retold(CASE).summary.endswith(f"there pid {SERVER} is at take (q10_distill.py:42)")


def test_one_that_waits_for_visitors_owes_nothing_for_all_that_is_known() -> None:
    """Another thread, or nobody, may have the connection."""
    assert f"there pid {SERVER}" not in retold(CASE, accepts).summary
