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
from perfwatch_probes.readings import Descriptor, ProcessUsage, Reading, Thread
from tests.recorded import RECORDINGS, load_case

LOOKALIKES = [case for case in cases(RECORDINGS) if case.parent == RECORDINGS / "unknown" / "lookalike"]
LOST_TURN = RECORDINGS / "unknown" / "fires" / "unknown"
EACH_SECONDS = 2.0  # between looks that repeat the last one
FROZEN = RECORDINGS / "stalled_collective" / "fires" / "stalled_collective-loader-quiet"
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
    assert any("--native" in one for one in verdict.next)


def test_nothing_is_said_before_every_probe_has_looked_twice() -> None:
    """What is complete grows with the samples."""
    assert diagnose(load_case(LOST_TURN).until(4.0), 4.0).state == "inconclusive"


def paused(recording: Recording, moments: tuple[float, ...]) -> Recording:
    """Half a minute later, and the training thread has run up to each of these moments."""
    at = {one.reading.pid: one for one in reversed(recording.records) if isinstance(one.reading, Thread)}
    first = at[min(at)].reading
    assert isinstance(first, Thread)
    ran = (structs.replace(first, state="R", wait=None, run_seconds=number * 1.0, ran_ago_seconds=0.0)
           for number, _ in enumerate(moments))  # fmt: skip
    before = tuple(
        structs.replace(at[min(at)], at=moment, reading=one) for moment, one in zip(moments, ran, strict=True)
    )
    later = tuple(structs.replace(one, at=one.at + 30.0) for one in recording.records)
    return replace(recording, records=(*before, *later))


def test_a_thread_that_paused_for_as_long_before_is_not_hung_without_a_name() -> None:
    """The rule that has a name for it waits until the pause is longer than any before; until then nothing is hung."""
    recording, at = load_case(LOST_TURN), expected_of(LOST_TURN).at + 30.0

    assert diagnose(paused(recording, (0.0, 5.0, 26.0)), at).state == "inconclusive"
    assert diagnose(paused(recording, (0.0,)), at).cause == "unknown"


def unhurried(reading: Reading) -> Reading:
    """The wait of each thread ends by itself in half a minute."""
    if not isinstance(reading, Thread) or reading.wait is None:
        return reading
    return structs.replace(reading, wait=structs.replace(reading.wait, forever=False, remaining_seconds=30.0))


def test_three_seconds_are_enough_where_the_kernel_knows_that_nothing_has_run() -> None:
    """Neither the rank nor its worker, in waits that only their objects end; the rule alone would take six."""
    looked = load_case(FROZEN).until(2.0)

    assert (diagnose(looked, 2.0).state, diagnose(looked, 2.0).cause) == ("hung", "stalled_collective")
    assert diagnose(changed(looked, unhurried), 2.0).state == "inconclusive"


def test_a_holder_outside_of_the_job_may_release_it() -> None:
    """It is not known what it does."""

    def outside(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or reading.kind != "eventfd":
            return reading
        return structs.replace(reading, writers=(*reading.writers, 4_000_000))

    assert diagnose(changed(load_case(LOST_TURN), outside), expected_of(LOST_TURN).at).state == "inconclusive"


def old(reading: Reading) -> Reading:
    """Linux before 5.2 does not say which eventfd it is."""
    return structs.replace(reading, writers=(), readers=()) if isinstance(reading, Descriptor) else reading


def handled(reading: Reading) -> Reading:
    """SIGALRM, number 14, has a handler."""
    return structs.replace(reading, signals_caught=1 << 13) if isinstance(reading, ProcessUsage) else reading


def prolonged(recording: Recording, change: object, seconds: float, works: int | None = None) -> Recording:
    """As it was at its end for so much longer, with other readings; the threads of process ``works`` run from then on."""
    longer = changed(recording, change)
    last = [one for one in longer.records if one.at > recording.end - EACH_SECONDS]

    def later(reading: Reading, by: float) -> Reading:
        if not isinstance(reading, Thread):
            return reading
        if reading.pid == works:
            return structs.replace(
                reading, state="R", wait=None, run_seconds=(reading.run_seconds or 0.0) + by, ran_ago_seconds=0.0
            )
        return structs.replace(reading, ran_ago_seconds=(reading.ran_ago_seconds or 0.0) + by)

    more = [
        structs.replace(one, at=one.at + by, reading=later(one.reading, by))
        for one in last
        for by in (EACH_SECONDS * number for number in range(1, int(seconds / EACH_SECONDS)))
    ]
    return replace(longer, records=(*longer.records, *sorted(more, key=lambda one: one.at)))


@pytest.mark.parametrize("change", [old, handled])
def test_what_may_still_be_released_is_called_hung_after_the_hang_timeout(change: object) -> None:
    """No rule has a name for it, and nothing in the job works for it: a suspicion with a countdown, then a hang with medium confidence."""
    recording = prolonged(load_case(LOST_TURN), change, 100.0)

    soon, late = diagnose(recording.until(45.0), 45.0), diagnose(recording.until(70.0), 70.0)

    assert (soon.state, soon.suspect and soon.suspect.cause) == ("inconclusive", "unknown")
    assert soon.suspect is not None
    assert soon.suspect.silent_seconds + soon.suspect.decides_in_seconds == pytest.approx(60.0, abs=0.1)
    assert (late.state, late.cause, late.confidence) == ("hung", "unknown", 0.65)
    assert "next_order" in late.summary
    assert "not ruled out: " in late.evidence[0].observed


def test_beside_a_process_that_works_no_hang_is_claimed() -> None:
    """It may be at work for what is waited for."""
    recording = load_case(LOST_TURN)
    worker = max(one.reading.pid for one in recording.records if isinstance(one.reading, Thread))
    longer = prolonged(recording, old, 100.0, works=worker)

    assert diagnose(longer.until(70.0), 70.0).state != "hung"


def test_a_name_is_given_once_the_wait_is_settled() -> None:
    """And not only after the hang timeout."""
    now = diagnose(load_case(NAMED).until(20.0), 20.0)

    assert (now.state, now.cause) == ("hung", "deadlocked_locks")


@pytest.mark.parametrize("case", LOOKALIKES, ids=lambda case: case.name)
def test_a_wait_that_something_can_release_is_not_settled(case: Path) -> None:
    """A holder that sleeps and returns, native code, a signal handler, a process outside of the job."""
    at = expected_of(case).at
    recording = load_case(case).until(at)
    states = [*states_of(Case(History(recording.records, at), recording.session, recording.events))]

    assert all(one.fate is None or one.fate.prospect is not Prospect.SETTLED for one in states)


def test_the_thread_that_moves_the_bytes_of_gloo_releases_nothing_else() -> None:
    """It looks up a hundred times a second while a rank waits for a writer that has ended, and the others for that rank."""
    behind = RECORDINGS / "stalled_collective" / "fires" / "writer_died_behind_its_queue"

    verdict = diagnose(load_case(behind).until(20.0), 20.0)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
