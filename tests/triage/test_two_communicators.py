"""Where all ranks use several communicators, calls in another order hang as a network that delivers nothing does."""

import msgspec

from perfwatch_probes.readings import Communicator
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold, same

CASE = RECORDINGS / "wedged_collective" / "fires" / "wedged_collective-nccl-attached"
OWN = next(one.reading for one in load_case(CASE).records if isinstance(one.reading, Communicator))
SECOND = msgspec.structs.replace(OWN, communicator="2b")


def test_without_recorders_a_second_communicator_of_all_ranks_is_said_and_makes_it_less_sure() -> None:
    """NCCL counts the calls of each, not their order over both."""
    alone, beside = retold(CASE), retold(CASE, same, SECOND)

    assert (alone.cause, beside.cause) == ("wedged_collective", "wedged_collective")
    assert "another order" not in alone.summary
    assert "2 communicators, made in another order" in beside.summary
    assert beside.confidence <= alone.confidence
    assert "perfwatch run" in beside.next[1]


def test_a_communicator_that_nobody_used_yet_hangs_nobody() -> None:
    """Groups are often made at the start, and some of them are for later."""
    idle = [msgspec.structs.replace(one, launched=dict.fromkeys(one.launched, 0)) for one in OWN.members]

    verdict = retold(CASE, same, msgspec.structs.replace(SECOND, members=tuple(idle)))

    assert "another order" not in verdict.summary
