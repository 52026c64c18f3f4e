"""Two ranks whose cards only poll, each behind a receive of its own, where nobody may ask a flight recorder."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import GpuActivity
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "wedged_collective" / "lookalike" / "both_only_poll_behind_receives"
SHORT_PATIENCE = 20.0  # seconds; the recording is 25 s long


@pytest.fixture(scope="module")
def impatient() -> Recording:
    """Recorded on two H100: a pipeline whose stages disagree on the number of micro-batches; asked with a short patience."""
    whole = load_case(CASE)
    conditions = {**whole.session.conditions, "patience_seconds": SHORT_PATIENCE}
    return replace(whole, session=msgspec.structs.replace(whole.session, conditions=conditions))


def test_where_all_wait_in_one_helper_its_callers_tell() -> None:
    """A helper that synchronises after each send and receive: the stages came there from lines of their own."""
    verdict = diagnose(load_case(CASE.parent / "both_poll_in_one_helper"))

    assert verdict.suspect is not None
    assert verdict.suspect.cause == "mismatched_collective"
    assert [one.frame for one in verdict.culprits] == ["step (schedule.py:22)", "step (schedule.py:33)"]


def test_it_is_suspected_while_the_patience_runs() -> None:
    """With a countdown, so that a one-shot look waits for it."""
    suspect = diagnose(load_case(CASE)).suspect

    assert suspect is not None
    assert (suspect.state, suspect.cause) == ("hung", "mismatched_collective")
    assert suspect.decides_in_seconds > 0.0


def test_beyond_it_the_job_hangs_and_nobody_claims_to_know_in_which_call(impatient: Recording) -> None:
    """Both ranks are named with their lines."""
    verdict = diagnose(impatient)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert verdict.confidence < CONFIDENT
    assert [one.rank for one in verdict.culprits] == [0, 1]


def test_a_card_that_works_keeps_it_open(impatient: Recording) -> None:
    """One of the two may only be late."""
    first = min(one.reading.uuid for one in impatient.records if isinstance(one.reading, GpuActivity))
    records = tuple(_working(one) if _is_of(one, first) else one for one in impatient.records)

    assert diagnose(replace(impatient, records=records)).state != "hung"


def _is_of(record: Record, uuid: str) -> bool:
    return isinstance(record.reading, GpuActivity) and record.reading.uuid == uuid


def _working(record: Record) -> Record:
    busy = msgspec.structs.replace(record.reading, tensor=0.4, dram=0.3, sm_active=0.9)
    return msgspec.structs.replace(record, reading=busy)
