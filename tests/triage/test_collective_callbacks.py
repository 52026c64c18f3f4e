"""A thread that waits for what a collective's callback brings waits for the other ranks, not for a lock."""

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Thread, Wait
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    runs,
    stands,
)

GLOO, FLUSHER, BESIDE = 900, 901, 902
UNTIL = STOPPED + 90.0
TAKES_UP: Frames = (
    Frame("wait", LIB + "threading.py", 327),
    Frame("get", LIB + "queue.py", 171),
    Frame("finish", TRAIN, 33),
    MODULE,
)
TAKES_A_LOCK: Frames = (Frame("log", TRAIN, 51), MODULE)
FLUSHES: Frames = (Frame("flush", TRAIN, 70), Frame("_bootstrap", LIB + "threading.py", 1002))
VALIDATES: tuple[Frames, ...] = tuple(
    (Frame("forward", TORCH + f"nn/modules/{kind}.py", 134), Frame("validate", TRAIN, 46), MODULE)
    for kind in ("linear", "activation", "container")
)
ASKS: Frames = (Frame("read", LIB + "socket.py", 700), Frame("fetch", TRAIN, 91), MODULE)
WITHIN_THE_TIMEOUT = Wait(call="futex", number=202, kind="futex", remaining_seconds=1800.0)
READS = Wait(call="recvfrom", number=45, kind="recv", fd=9, forever=True)


def taking_up(gloo: Wait, frames: Frames = TAKES_UP) -> History:
    """The second of two ranks waits in Python, beside a thread of gloo's in such a wait."""
    history = job(2)
    stands(history, FIRST + 1, frames, FOR_EVER, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, Thread(pid=FIRST + 1, tid=GLOO, name="pt_gloo_runloop", state="S", cpu_seconds=1.0, run_seconds=1.0,
                               voluntary_switches=50, ran_ago_seconds=at - STOPPED, wait=gloo))  # fmt: skip
    return history


def validating(history: History, at: float = UNTIL) -> Verdict:
    """What is said while the first rank goes through its validation set."""
    runs(history, FIRST, VALIDATES, STOPPED, UNTIL)
    return judged(history, at)


@pytest.mark.parametrize("after_seconds", [7.0, 80.0])
def test_a_rank_that_takes_up_what_the_backend_reduces_waits_for_the_one_that_validates(after_seconds: float) -> None:
    """Its queue is filled by gloo's own thread as soon as all ranks have come to the collective."""
    verdict = validating(taking_up(WITHIN_THE_TIMEOUT), STOPPED + after_seconds)

    assert (verdict.state, verdict.cause) == ("busy", "evaluating")
    assert {one.rank for one in verdict.culprits} == {0}


def test_a_rank_that_never_comes_to_the_collective_is_blamed_and_not_the_one_that_waits_for_its_callback() -> None:
    """It waits for the network."""
    history = taking_up(WITHIN_THE_TIMEOUT)
    stands(history, FIRST, ASKS, READS, UNTIL)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert {one.rank for one in verdict.culprits} == {0}


def test_a_queue_that_no_collective_can_fill_is_one_that_nobody_fills() -> None:
    """Gloo's thread waits for its next task: no collective is under way."""
    verdict = validating(taking_up(FOR_EVER))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.confidence > 0.9


def test_two_threads_that_wait_for_locks_explain_each_other_whatever_is_under_way() -> None:
    """A callback brings news; that it releases a lock for which two ask is far less likely."""
    history = taking_up(WITHIN_THE_TIMEOUT, TAKES_A_LOCK)
    stands(history, FIRST + 1, FLUSHES, FOR_EVER, UNTIL, tid=FLUSHER)

    verdict = validating(history)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")


def test_beside_a_thread_that_moves_it_is_no_deadlock_while_another_rank_may_come() -> None:
    """Another thread might fill the queue, and so might the collective that the first rank has yet to join."""
    history = taking_up(WITHIN_THE_TIMEOUT)
    runs(history, FIRST + 1, (FLUSHES,), STOPPED, UNTIL, tid=BESIDE, share=0.03)

    verdict = validating(history)

    assert (verdict.state, verdict.cause) == ("busy", "evaluating")
