"""Since when nobody moves where the process that is waited for has ended."""

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Process, ProcessEnded
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "dead_worker" / "fires" / "dead_before_we_came"
PRODUCER = 14607
RAN_AGO = 3.3  # as the kernel said when it was recorded, after 1.3 s


def test_who_came_when_it_was_dead_already_hears_how_long_the_waiting_one_has_not_run() -> None:
    """Not how long we have watched it."""
    verdict = diagnose(load_case(CASE), expected_of(CASE).at)

    assert verdict.silent_seconds == RAN_AGO
    assert verdict.onset is not None
    assert datetime.fromisoformat(verdict.at[:-1]) - datetime.fromisoformat(verdict.onset[:-1]) >= timedelta(seconds=3)


def test_a_process_that_worked_until_its_end_was_watched_was_waited_for_in_good_faith() -> None:
    """A zombie has no command line; this one had: it was alive when it was first seen."""
    recording, at = load_case(CASE), expected_of(CASE).at

    def alive(reading: Process) -> Process:
        return msgspec.structs.replace(reading, command=("python", "train.py"))

    records = tuple(
        msgspec.structs.replace(one, reading=alive(one.reading))
        if isinstance(one.reading, Process) and one.reading.pid == PRODUCER
        else one
        for one in recording.records
    )
    ended = next(one.at for one in records if isinstance(one.reading, ProcessEnded))

    verdict = diagnose(replace(recording, records=records), at)

    assert verdict.cause == "dead_worker"
    assert verdict.silent_seconds == round(at - ended, 1)


def test_who_fills_a_queue_beside_the_one_that_ended_is_not_said_to_wait_for_it() -> None:
    """It waits for room; the training thread waits for more from the other, and is named with the dead."""
    case = CASE.parent / "reader_that_left_its_queue"
    verdict = diagnose(load_case(case), expected_of(case).at)

    assert verdict.cause == "dead_worker"
    assert (
        "process 29707 has ended (exited with code 0), and pid 29703 at _next (feed.py:54) waits for more from it"
        in (verdict.summary)
    )
    assert [one.frame for one in verdict.culprits] == [None, "_next (feed.py:54)"]
    assert "is_alive()" in verdict.next[-1]
