"""Processes that wait for each other at a barrier, one of which has ended: who is missed, why it ended, and where to look."""

from dataclasses import replace

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Recording
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, ProcessEnded, Stack, Traceback
from tests.recorded import RECORDINGS, load_case

CASES = RECORDINGS / "dead_worker" / "fires"
CASE, MISSED = CASES / "missed_at_a_barrier", 23866


def judged(recording: Recording) -> Verdict:
    """At the moment of the case."""
    return diagnose(recording, expected_of(CASE).at)


def ended(**how: int | None) -> Recording:
    """The case, where the one that is missed ended in another way."""
    recording = load_case(CASE)
    records = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, **{"exit_code": None, **how}))
        if isinstance(one.reading, ProcessEnded) and one.reading.pid == MISSED
        else one
        for one in recording.records
    )
    return replace(recording, records=records)


def test_who_is_missed_is_told_with_its_exit_code_and_no_lock_is_spoken_of() -> None:
    """A worker raised; two others wait in ``Barrier.wait``."""
    verdict = judged(load_case(CASE))

    assert (
        "at worker (train.py:41) waits at a barrier for process 23866, which has ended (exited with code 1"
        in verdict.summary
    )
    assert [culprit.pid for culprit in verdict.culprits][:1] == [MISSED]
    assert "traceback of process 23866" in verdict.next[0]
    assert not [one for one in (verdict.summary, *verdict.next) if "lock" in one or "dmesg" in one]


def test_the_kernels_log_is_asked_where_a_signal_ended_it_or_nobody_knows_what_did() -> None:
    """The OOM killer may have."""
    assert "killed by SIGKILL" in judged(ended(signal=9)).summary
    assert judged(ended(signal=9)).next[0].startswith("dmesg")
    assert judged(ended()).next[0].startswith("dmesg")


def test_one_that_left_as_it_should_is_missed_all_the_same() -> None:
    """It made fewer rounds than the others."""
    verdict = judged(ended(exit_code=0))

    assert "has ended (exited with code 0" in verdict.summary
    assert verdict.next[0] == "why process 23866 left before the others"


def test_its_last_words_are_shown_where_the_agent_kept_them() -> None:
    """Most are printed by multiprocessing itself, and nobody but the job's stderr has them."""
    recording = load_case(CASE)
    words = Traceback(pid=MISSED, exception="IndexError", text="IndexError: Target 7 is out of bounds.")
    records = (*recording.records, msgspec.structs.replace(recording.records[-1], reading=words))

    evidence = judged(replace(recording, records=records)).evidence

    assert [one.observed for one in evidence if one.witness == "traceback"] == [words.text]


def test_a_condition_between_processes_is_no_lock() -> None:
    """The same wait without the barrier around it."""
    recording = load_case(CASE)
    records = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, frames=_without(one.reading)))
        if isinstance(one.reading, Stack)
        else one
        for one in recording.records
    )

    assert "waits for a condition or an event between processes that is not signalled; process 23866 has ended" in (
        judged(replace(recording, records=records)).summary
    )


def _without(stack: Stack) -> tuple[Frame, ...]:
    return tuple(frame for frame in stack.frames if not frame.function.startswith("Barrier"))


def test_a_semaphore_is_taken_along_as_before() -> None:
    """What is a lock is still called one."""
    case = CASES / "semaphore_taken_along"

    assert "waits for a lock between processes that one of them never gave back" in (
        diagnose(load_case(case), expected_of(case).at).summary
    )
