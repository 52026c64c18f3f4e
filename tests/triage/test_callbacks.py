"""A callback that a card's stream waits for, and that waits for a lock of whoever waits for the card; and its look-alikes."""

from collections.abc import Callable

from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import GpuActivity, Reading, SourceLine, Stack
from tests.recorded import RECORDINGS, load_case

FOLDER = RECORDINGS / "deadlocked_locks" / "fires" / "callback_of_a_card"


def judged(change: Callable[[Reading], Reading] = lambda reading: reading) -> Verdict:
    """The recorded job, with readings changed."""
    whole, at = load_case(FOLDER), expected_of(FOLDER).at
    history = History()
    for one in whole.records:
        if one.at <= at:
            history.add(one.at, change(one.reading))
    history.at = at
    return judge(Case(history, whole.session, whole.events))


def test_both_lines_and_the_lock_are_named() -> None:
    """The thread that spins, and the one that its card waits for."""
    verdict = judged()

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert "holds self.lock" in verdict.summary
    assert [one.frame for one in verdict.culprits] == ["report (monitor.py:33)", "_on_done (monitor.py:18)"]


def test_a_thread_of_the_program_that_asks_for_the_lock_keeps_no_card() -> None:
    """Whoever holds the lock may be computing: the line is called neither a hang nor work."""

    def started(reading: Reading) -> Reading:
        if isinstance(reading, Stack) and any("_on_done" in frame.function for frame in reading.frames):
            return structs.replace(reading, thread="Thread-1 (watch)")
        return reading

    assert judged(started).state == "inconclusive"


def test_another_lock_keeps_nobody() -> None:
    """The callback asks for a lock that the training thread does not hold."""

    def other(reading: Reading) -> Reading:
        if isinstance(reading, SourceLine) and reading.text.startswith("with self.lock"):
            return structs.replace(reading, text="with self.log:", within=("self.log",))
        return reading

    assert judged(other).state == "inconclusive"


def test_a_card_at_work_will_come_to_the_callback() -> None:
    """A long kernel before it, and time heals it."""

    def works(reading: Reading) -> Reading:
        busy = isinstance(reading, GpuActivity)
        return structs.replace(reading, graphics=1.0, sm_active=0.9, dram=0.3, tensor=0.4) if busy else reading

    assert judged(works).cause != "deadlocked_locks"
