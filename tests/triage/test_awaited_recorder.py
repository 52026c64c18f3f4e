"""Ranks that are all in one call, whose recorders have not yet told what sizes they mean by it."""

from dataclasses import replace

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import ProbeCall
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

CASE = RECORDINGS / "wedged_collective" / "lookalike" / "sizes-that-the-recorders-have-not-told-yet"
REFUSED = ProbeCall(
    probe="flight_recorder", entity="rank 0", duration_seconds=4.0, outcome="unavailable", reason="it is silent"
)


def test_the_fabric_is_not_blamed_while_a_recorder_may_tell_that_sizes_differ() -> None:
    """One of the ranks means 900 elements; RAS counts calls alone, and those are level."""
    verdict = retold(CASE)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "wedged_collective"


def test_where_the_recorders_do_not_answer_it_is_blamed_less_surely() -> None:
    """Nothing more will be known."""
    verdict = retold(CASE, lambda reading: reading, REFUSED)

    assert (verdict.cause, verdict.confidence) == ("wedged_collective", 0.8)


def test_nor_is_it_waited_for_where_the_look_at_the_job_is_over() -> None:
    """What several hosts have sent holds no question under way."""
    recording = load_case(CASE)
    conditions = {**recording.session.conditions, "apart_seconds": 0.0}
    sent = replace(recording, session=msgspec.structs.replace(recording.session, conditions=conditions))

    assert diagnose(sent, expected_of(CASE).at).cause == "wedged_collective"
