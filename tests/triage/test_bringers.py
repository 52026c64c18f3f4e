"""Who brings what a thread waits for is known by the text of the lines: the same name, and the call that lets it go on."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.waits.bringers import LET_GO_ON
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import GIVING, SourceLine
from tests.recorded import RECORDINGS, load_case

RESTS = RECORDINGS / "waiting_on_work" / "fires" / "shards_of_a_thread_that_rests"
LEASE = RECORDINGS / "stalled_collective" / "fires" / "lease_that_is_looked_for"
LOOP = RECORDINGS / "deadlocked_locks" / "lookalike" / "event_loop_of_another_thread"
PUTS = "self.out.put"


def judged(case: Path, instead: str = PUTS) -> Verdict:
    """With another call in place of the one that puts into the queue."""
    recording = load_case(case)
    records = [
        msgspec.structs.replace(one, reading=_with(one.reading, instead))
        if isinstance(one.reading, SourceLine)
        else one
        for one in recording.records
    ]
    return diagnose(replace(recording, records=tuple(records)), expected_of(case).at)


def _with(line: SourceLine, instead: str) -> SourceLine:
    calls, loop = ([instead if call == PUTS else call for call in calls] for calls in (line.calls, line.loop_calls))
    return msgspec.structs.replace(line, calls=tuple(calls), loop_calls=tuple(loop))


def test_the_thread_that_puts_into_the_queue_is_waited_for() -> None:
    """It sleeps for half a minute before its next try, and the training thread has waited for more than one."""
    verdict = judged(RESTS)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "from thread prefetch" in verdict.wait_chain[0].waits_for


@pytest.mark.parametrize("call", ["self.errors.put", "self.out.clear"])
def test_one_that_calls_something_else_is_not(call: str) -> None:
    """A queue of another name, or another method of that queue: who brings the item is not known."""
    verdict = judged(RESTS, call)

    assert verdict.cause != "waiting_on_work"
    assert "from thread" not in verdict.wait_chain[0].waits_for


def test_a_rank_that_looks_for_a_file_again_and_again_may_come() -> None:
    """Alone it is no surer that the file never comes: the lease of a process that had ended ran out after two minutes."""
    verdict = judged(LEASE)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "stalled_collective", 0.78)


def test_an_event_loop_in_another_thread_may_bring_what_is_awaited() -> None:
    """Behind the timer that is due next there may be others: nothing is sure before the patience is over."""
    verdict = judged(LOOP)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "deadlocked_locks"


def test_all_that_lets_go_on_is_read_from_the_source() -> None:
    """What the probe leaves out no rule can find."""
    assert {call for calls in LET_GO_ON.values() for call in calls} == GIVING
