"""A rank that asks for one thing after the other while the others wait: each answer is waited for anew."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.patience import LONGEST_RECOVERED
from perfwatch_probes.readings import Frame, Stack, Thread, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    LOOK_SECONDS,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    stands,
)

PATIENCE = 60.0
ASKS: Frames = (Frame("begin", LIB + "http/client.py", 279), Frame("ask", TRAIN, 39), MODULE)
PARSES_SECONDS = 0.05  # of CPU time, between two answers
UNTIL = STOPPED + 400.0


def asking(answered_after: tuple[float, ...]) -> History:
    """The first of two ranks, in requests that are answered one after the other; the last one never is."""
    history = job(2)
    stands(history, FIRST + 1, BARRIER, FOR_EVER, UNTIL)
    begun = [STOPPED]
    for seconds in answered_after:
        begun.append(begun[-1] + seconds)
    for number, (since, until) in enumerate(zip(begun, [*begun[1:], UNTIL], strict=True)):
        ran = 5.0 + number * PARSES_SECONDS
        for at in looks(since, until):
            wait = Wait(call="poll", number=7, kind="poll", fd=9, remaining_seconds=300.0 - (at - since))
            history.add(at, Thread(pid=FIRST, tid=FIRST, name="python", state="S", cpu_seconds=ran, run_seconds=ran,
                                   voluntary_switches=50 + number, ran_ago_seconds=at - since, wait=wait))  # fmt: skip
            history.add(at, Stack(pid=FIRST, tid=FIRST, frames=ASKS, samples=10, span_seconds=LOOK_SECONDS))
    return history


@pytest.mark.parametrize("answers", [1, 4, 7])
def test_a_rank_whose_requests_are_answered_after_a_while_is_not_stuck_however_long_the_others_wait(
    answers: int,
) -> None:
    """Of the others' wait no part is longer than that for one answer."""
    history = asking((35.0,) * answers)

    verdict = judged(history, STOPPED + answers * 35.0 + 30.0)

    assert verdict.state == "inconclusive"


@pytest.mark.parametrize(("each_seconds", "answers"), [(35.0, 1), (35.0, 4)])
def test_one_that_is_answered_no_more_is_stuck_after_the_patience_or_what_it_has_recovered_from(
    each_seconds: float, answers: int
) -> None:
    """It is told for how long it has stood, not for how long the others have waited."""
    history = asking((each_seconds,) * answers)
    since = STOPPED + answers * each_seconds

    verdict = judged(history, since + max(PATIENCE, LONGEST_RECOVERED * each_seconds) + 5.0)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert {one.rank for one in verdict.culprits} == {0}
    assert verdict.silent_seconds is not None
    assert verdict.silent_seconds <= history.at - since + LOOK_SECONDS
