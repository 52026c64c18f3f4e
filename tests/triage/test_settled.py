"""A hang without a name: what is said where nothing can release a wait, and when nothing is said."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import cases, expected_of
from perfwatch.recording.recording import Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.graph.decide import states_of
from perfwatch.triage.graph.model import Prospect
from perfwatch.triage.history import History
from perfwatch.triage.rules import RULES
from perfwatch_probes.readings import Descriptor, Process, ProcessUsage, Reading
from tests.recorded import RECORDINGS, load_case

LOOKALIKES = [case for case in cases(RECORDINGS) if case.parent == RECORDINGS / "unknown" / "lookalike"]
LOST_TURN = RECORDINGS / "unknown" / "fires" / "unknown"
NAMED = RECORDINGS / "deadlocked_locks" / "fires" / "actors_that_call_each_other"


def changed(recording: Recording, change: object) -> Recording:
    """With other readings."""
    assert callable(change)
    return replace(
        recording, records=tuple(structs.replace(one, reading=change(one.reading)) for one in recording.records)
    )


def test_the_chain_the_culprit_and_the_reason_are_told() -> None:
    """Without a name, what is known is said all the more."""
    verdict = diagnose(load_case(LOST_TURN), expected_of(LOST_TURN).at)

    assert (verdict.state, verdict.cause, verdict.owner) == ("hung", "unknown", "unknown")
    assert "No thread or process that perfwatch can see can still release this wait" in verdict.summary
    assert "next_order" in (verdict.culprits[0].frame or "")
    assert [link.waits_for for link in verdict.wait_chain] == ["an eventfd", "an eventfd"]
    assert verdict.evidence[0].witness == "wait graph"
    assert any("py-spy dump --native" in one for one in verdict.next)


def test_nothing_is_said_before_every_probe_has_looked_twice() -> None:
    """What is complete grows with the samples."""
    assert diagnose(load_case(LOST_TURN).until(4.0), 4.0).state == "inconclusive"


def test_a_holder_outside_of_the_job_may_release_it() -> None:
    """It is not known what it does."""

    def outside(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or reading.kind != "eventfd":
            return reading
        return structs.replace(reading, writers=(*reading.writers, 4_000_000))

    assert diagnose(changed(load_case(LOST_TURN), outside), expected_of(LOST_TURN).at).state == "inconclusive"


def test_an_eventfd_whose_holders_are_not_known_is_open() -> None:
    """Linux before 5.2 does not say which one it is."""

    def old(reading: Reading) -> Reading:
        return structs.replace(reading, writers=(), readers=()) if isinstance(reading, Descriptor) else reading

    assert diagnose(changed(load_case(LOST_TURN), old), expected_of(LOST_TURN).at).state == "inconclusive"


def test_a_handler_of_a_signal_may_release_it() -> None:
    """SIGALRM is number 14."""
    recording = load_case(LOST_TURN)
    pid = min(one.reading.pid for one in recording.records if isinstance(one.reading, Process))
    usage = ProcessUsage(pid=pid, state="S", threads=1, cpu_seconds=1.0, major_faults=0, minor_faults=0,
                         resident_bytes=0, signals_caught=1 << 13)  # fmt: skip
    first = recording.records[0]
    with_it = replace(recording, records=(*recording.records, structs.replace(first, reading=usage)))

    assert diagnose(with_it, expected_of(LOST_TURN).at).state == "inconclusive"


def test_a_name_that_is_only_suspected_is_given_once_the_wait_is_settled() -> None:
    """The rule alone would wait for the whole hang timeout."""
    recording, at = load_case(NAMED), 20.0
    alone = tuple(rule for rule in RULES if rule.cause.name != "unknown")
    before, now = diagnose(recording.until(at), at, alone), diagnose(recording.until(at), at)

    assert before.suspect is not None
    assert (before.state, before.suspect.cause) == ("inconclusive", "deadlocked_locks")
    assert (now.state, now.cause) == ("hung", "deadlocked_locks")
    assert any(one.witness == "wait graph" for one in now.evidence)


@pytest.mark.parametrize("case", LOOKALIKES, ids=lambda case: case.name)
def test_a_wait_that_something_can_release_is_not_settled(case: Path) -> None:
    """A holder that sleeps and returns, native code, a signal handler, a process outside of the job."""
    at = expected_of(case).at
    recording = load_case(case).until(at)
    states = states_of(Case(History(recording.records, at), recording.session, recording.events))

    assert all(one.fate is None or one.fate.prospect is not Prospect.SETTLED for one in states)
