"""A read of stdin that is a pipe: a question that nobody will answer, or the next order of whoever drives the program."""

import pytest

from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Frame, SourceLine, Wait
from tests.triage.rank_looks import FIRST, MODULE, STOPPED, TRAIN, Frames, job, judged, looks, runs, stands, uses

ASKS: Frames = (Frame("confirm", TRAIN, 24), Frame("save", TRAIN, 31), MODULE)
READS = Wait(call="read", number=0, kind="read", fd=0, forever=True)
ORCHESTRATOR = 77  # outside of the job
SECOND = 6.0  # seconds of the order before


def asks(
    calls: tuple[str, ...],
    loops: tuple[str, ...] = (),
    before: bool = False,
    writers: tuple[int, ...] = (ORCHESTRATOR,),
) -> History:
    """A program that has trained reads a line from its stdin; ``before``: it was given one already, and trained by it."""
    history, since = job(1), STOPPED
    history.add(0.0, SourceLine(file=TRAIN, line=24, text="", calls=calls, loops=loops))
    if before:
        stands(history, FIRST, ASKS, READS, STOPPED + SECOND)
        train: tuple[Frames, ...] = ((Frame("step", TRAIN, 11), MODULE), (Frame("step", TRAIN, 13), MODULE))
        runs(history, FIRST, train, STOPPED + SECOND, STOPPED + 2 * SECOND)
        since = STOPPED + 2 * SECOND
    stands(history, FIRST, ASKS, READS, since + 90.0, since)
    for at in looks(STOPPED, since + 90.0):
        history.add(
            at,
            Descriptor(
                pid=FIRST, fd=0, kind="pipe", target="pipe:[9]", access="r", inode=9, readers=(FIRST,), writers=writers
            ),
        )
    history.at = since
    return history


@pytest.mark.parametrize("calls", [("sys.stdin.readline",), ("input",)])
def test_a_question_in_the_midst_of_training_hangs_within_seconds_though_not_surely(calls: tuple[str, ...]) -> None:
    """Somebody holds the write end, and may yet answer."""
    history = asks(calls)
    verdict = judged(history, history.at + 8.0)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "blocked_pipe", 0.65)


@pytest.mark.parametrize(
    ("calls", "loops", "before"),
    [
        (("sys.stdin.readline",), ("while",), False),
        (("input",), ("while",), False),
        (("sys.stdin.readline",), (), True),
        (("input",), (), True),
    ],
)
def test_who_is_given_one_order_after_the_other_is_given_time(
    calls: tuple[str, ...], loops: tuple[str, ...], before: bool
) -> None:
    """An orchestrator outside of the job sends when it likes; beyond the patience it is called hung, and not surely."""
    history = asks(calls, loops, before)
    since = history.at
    soon, late = judged(history, since + 30.0), judged(history, since + 80.0)

    assert soon.state == "inconclusive"
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_pipe", 0.65)


@pytest.mark.parametrize(
    ("loops", "cores", "state"), [(("while",), 0.9, "busy"), (("while",), 0.01, "hung"), ((), 0.9, "busy")]
)
def test_a_writer_outside_of_the_job_that_works_will_send_when_it_is_done(
    loops: tuple[str, ...], cores: float, state: str
) -> None:
    """Who shuffles the next epoch computes for minutes before its first line."""
    history = asks(("sys.stdin.readline",), loops)
    uses(history, ORCHESTRATOR, cores, 0.0, STOPPED + 90.0)
    verdict = judged(history, STOPPED + 80.0)

    assert verdict.state == state
    assert verdict.cause == ("waiting_on_work" if state == "busy" else "blocked_pipe")


def test_a_stdin_whose_other_end_nobody_is_seen_to_hold_may_be_written_to_from_where_nobody_can_look() -> None:
    """From outside of a container, for one: the end of the file would have been met otherwise."""
    history = asks(("sys.stdin.readline",), ("while",), writers=())

    assert judged(history, history.at + 8.0).state == "inconclusive"


def test_a_stdin_whose_other_end_only_its_reader_holds_is_sure() -> None:
    """Nobody is left who could send anything."""
    history = asks(("sys.stdin.readline",), ("while",), writers=(FIRST,))
    verdict = judged(history, history.at + 8.0)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_pipe")
    assert verdict.confidence > 0.9
