"""A log that was written regularly and is not any more tells since when a rank does nothing; one that was not tells nothing."""

from typing import Any

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import FileGrowth, Frame, SourceLine, Stack, Thread, Wait
from tests.triage.rank_looks import FIRST, MODULE, TRAIN, Frames, job, judged, looks, uses

POLLS: Frames = (Frame("wait_for_teacher", TRAIN, 24), MODULE)
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)
BEGAN, SEEN_FOR = 150.0, 6.0
LOG: dict[str, Any] = {
    "fd": 1,
    "path": "/runs/train.log",
    "size_bytes": 9000,
    "modified_ago_seconds": 100.0,
    "alike_lines": 200,
}


def polls(*files: dict[str, Any], calls: int = 210, writes: int = 0, ran: float = 40.0) -> Verdict:
    """What is said after six seconds of a rank that sleeps and looks for a file, of which it is known what it writes.

    calls: to write, that its training thread has made. writes: and makes at each look. ran: seconds of CPU time, until then.
    """
    history: History = job(1, trained=False)
    end = BEGAN + SEEN_FOR
    for turn, at in enumerate(looks(BEGAN, end)):
        history.add(at, Thread(pid=FIRST, tid=FIRST, name="python", state="S", cpu_seconds=ran, run_seconds=ran + turn / 1000,
                               wait=NAP, voluntary_switches=turn, ran_ago_seconds=0.01, write_calls=calls + writes * turn))  # fmt: skip
        history.add(at, Stack(pid=FIRST, tid=FIRST, frames=POLLS, samples=10, span_seconds=0.5))
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=24, text="time.sleep(0.5)", calls=("time.sleep",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    for file in files:
        history.add(BEGAN + 1.0, FileGrowth(pid=FIRST, **file))
    return judged(history, end)


def test_a_poll_of_a_rank_whose_log_fell_silent_long_ago_has_lasted_as_long() -> None:
    """After some seconds of watching, and without certainty."""
    verdict = polls(LOG)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "waiting_for_file", 0.65)
    assert verdict.silent_seconds == 105.0
    assert ("log", "last written 1 min 45 s ago", "200 lines alike over 52 s") in [
        (one.witness, one.observed, one.expected) for one in verdict.evidence
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"alike_lines": None},
        {"alike_lines": 7},
        {"alike_lines": 4000, "modified_ago_seconds": 142.0},
        {"alike_lines": 21, "modified_ago_seconds": 70.0},
    ],
    ids=["irregular", "few", "of_the_start", "seldom"],
)
def test_a_log_that_was_not_written_often_may_be_silent_for_long(changed: dict[str, Any]) -> None:
    """Irregular, a few lines, all of them while the program started, or one each four seconds and silent for less than twenty times."""
    assert polls({**LOG, **changed}).state == "inconclusive"


def test_lines_that_an_earlier_run_left_in_the_log_do_not_count() -> None:
    """This one has made a few calls to write."""
    assert polls(LOG, calls=4).state == "inconclusive"


def test_a_rank_that_writes_another_file_is_not_silent() -> None:
    """Its events, or a checkpoint."""
    events = {"fd": 7, "path": "/runs/events.out", "size_bytes": 77, "modified_ago_seconds": 2.0}

    assert polls(LOG, events).state == "inconclusive"


def test_a_rank_that_writes_to_a_terminal_meanwhile_is_not_silent() -> None:
    """Or to a pipe, or to files that it closes again: its calls tell."""
    assert polls(LOG, writes=1).state == "inconclusive"


def test_who_computed_for_longer_than_the_log_was_written_went_on_without_a_word() -> None:
    """The lines were about its start."""
    assert polls(LOG, ran=90.0).state == "inconclusive"


def test_without_files_the_patience_is_waited_out() -> None:
    """As before."""
    assert polls().state == "inconclusive"
