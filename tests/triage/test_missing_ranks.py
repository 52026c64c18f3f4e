"""Who is to blame at a rendezvous to which somebody does not come: who is not there, never those who wait."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.probes.readings import Process
from perfwatch.recording import Record, load
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.verdict import Verdict
from tests.triage.retold import retold

RECORDINGS = Path(__file__).parent / "recordings" / "blocked_rendezvous" / "fires"
CASE = RECORDINGS / "at_different_ports"
LEFT = RECORDINGS / "rank_that_has_left"


def of_five(record: Record, here: int | None) -> Record:
    """The launcher told its ranks of three more, and how many of them are to be on this machine."""
    process = record.reading
    if not isinstance(process, Process) or process.rank is None:
        return record
    changed = msgspec.structs.replace(process, world_size=5, local_world_size=here)
    return msgspec.structs.replace(record, reading=changed)


def judged(here: int | None) -> Verdict:
    """What is said of two ranks that wait for three others."""
    whole = load(CASE)
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
