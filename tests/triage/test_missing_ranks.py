"""Who is to blame at a rendezvous to which somebody does not come: who is not there, never those who wait."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, ProbeCall, Process, Reading
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold, same

CASES = RECORDINGS / "blocked_rendezvous" / "fires"
CASE = CASES / "at_different_ports"
LEFT = CASES / "rank_that_has_left"
GONE = CASES / "rank_gone_since_they_met"
UNSEEN = ProbeCall(
    probe="ranks",
    entity="3",
    duration_seconds=0.0,
    outcome="unavailable",
    reason="3 processes that run the job's program may not be looked into: pid 7, 8, 9 of uid 1002",
    advice="sudo $(command -v perfwatch) attach 5",
)


def of_five(record: Record, here: int | None) -> Record:
    """The launcher told its ranks of three more, and how many of them are to be on this machine."""
    process = record.reading
    if not isinstance(process, Process) or process.rank is None:
        return record
    changed = msgspec.structs.replace(process, world_size=5, local_world_size=here)
    return msgspec.structs.replace(record, reading=changed)


def judged(here: int | None) -> Verdict:
    """What is said of two ranks that wait for three others."""
    whole = load_case(CASE)
    return diagnose(replace(whole, records=tuple(of_five(record, here) for record in whole.records)))


@pytest.mark.parametrize("here", [5, None])
def test_the_ranks_that_are_not_there_are_to_blame(here: int | None) -> None:
    """They have no process here, and so no number of one."""
    verdict = judged(here)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_rendezvous")
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 0), (3, 0), (4, 0)]
    assert "ranks 2, 3, 4 of 5 are not on this machine" in verdict.summary


def test_of_a_job_on_two_machines_nobody_is_blamed_from_one_of_them() -> None:
    """One of the others is missing, or waits on the other machine as these do here."""
    verdict = judged(2)

    assert (verdict.cause, verdict.culprits) == ("blocked_rendezvous", ())


def test_a_rank_that_has_left_is_named_by_those_who_wait_for_its_key() -> None:
    """It ended well, by its own account: nothing but the wait of the others tells that it was needed."""
    verdict = retold(LEFT)

    assert "has ended (exited with code 0)" in verdict.summary
    assert [one.rank for one in verdict.culprits] == [2]


def test_a_rank_that_is_gone_since_all_met_is_not_looked_for_on_another_machine() -> None:
    """The others have gloo's threads, which come when each is connected to every other; all that wait are shown."""

    def elsewhere(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or reading.socket is None or reading.socket.family != "tcp":
            return reading  # the store's are of family tcp6 here
        return msgspec.structs.replace(reading, socket=msgspec.structs.replace(reading.socket, peer_pids=()))

    verdict = retold(GONE)

    assert verdict.summary.endswith("rank 1 of 3 is gone since they met")
    assert [one.rank for one in verdict.culprits] == [1]
    assert {link.rank for link in verdict.wait_chain} == {0, 2}
    assert retold(GONE, elsewhere).summary.endswith(
        "rank 1 of 3 is gone since they met, or where it cannot be seen from here"
    )


def test_where_ranks_may_not_be_looked_into_none_is_said_to_be_gone() -> None:
    """What to type is said first."""
    verdict = retold(GONE, same, UNSEEN)

    assert verdict.culprits == ()
    assert "pid 7, 8, 9 of uid 1002" in verdict.summary
    assert verdict.next[0] == UNSEEN.advice
