"""A queue of ``multiprocessing`` between threads of one process: its reader holds the write end, too."""

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, ProcessEnded, Wait
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
)

GETS: Frames = (Frame("_recv", LIB + "multiprocessing/connection.py", 395), Frame("get", LIB + "multiprocessing/queues.py", 103),
                Frame("main", TRAIN, 45), MODULE)  # fmt: skip
READS = Wait(call="read", number=0, kind="read", fd=3, forever=True)
STARTED = (Frame("run", LIB + "threading.py", 982), Frame("_bootstrap", LIB + "threading.py", 1002))
MAKES: tuple[Frames, ...] = (
    (Frame("log_mel", TRAIN, 19), Frame("prepare", TRAIN, 28), *STARTED),
    (Frame("log_mel", TRAIN, 20), Frame("prepare", TRAIN, 28), *STARTED),
)
LOCKED: Frames = (Frame("prepare", TRAIN, 27), *STARTED)
MAKER, CHILD, UNTIL = FIRST + 1, 300, STOPPED + 90.0


def reader(kind: str = "pipe", writers: tuple[int, ...] = (FIRST,)) -> History:
    """A training thread in ``get``, of a queue that no other process has open, but for ``writers``."""
    history = job(1)
    stands(history, FIRST, GETS, READS, UNTIL)
    target = "pipe:[7]" if kind == "pipe" else "/data/orders"
    for at in looks(STOPPED, UNTIL):
        history.add(at, Descriptor(pid=FIRST, fd=3, kind=kind, target=target, access="r", inode=7,
                                   readers=(FIRST,), writers=writers))  # fmt: skip
    return history


def verdict_of(history: History, waited: float) -> Verdict:
    """So long after the training thread has begun to wait."""
    return judged(history, STOPPED + waited)


def test_a_thread_that_computes_what_it_will_put_into_the_queue_is_no_hang() -> None:
    """However long the next shard takes."""
    history = reader()
    runs(history, FIRST, MAKES, STOPPED, UNTIL, tid=MAKER)

    states = [verdict_of(history, waited).state for waited in (7.0, 30.0, 80.0)]

    assert states == ["inconclusive", "busy", "busy"]


def test_the_thread_that_would_fill_the_queue_is_blamed_where_it_stands() -> None:
    """It waits for a lock that no running thread can release."""
    history = reader()
    stands(history, FIRST, LOCKED, FOR_EVER, UNTIL, tid=MAKER)

    verdict = verdict_of(history, 80.0)

    assert verdict.state == "hung"
    assert "prepare (train.py:27)" in {one.frame for one in verdict.culprits}


def test_a_child_that_is_gone_is_to_blame_where_no_thread_works() -> None:
    """It filled the queue; a thread of the process that waits for an order was never to do so."""
    history = reader()
    history.add(0.0, process(CHILD, FIRST, "python train.py"))
    history.add(STOPPED, ProcessEnded(pid=CHILD, start_ticks=CHILD, signal=9))
    stands(history, FIRST, LOCKED, FOR_EVER, UNTIL, tid=MAKER)

    verdict = verdict_of(history, 80.0)

    assert (verdict.state, verdict.cause) == ("hung", "dead_worker")


@pytest.mark.parametrize(("signal", "cause"), [(6, "dead_worker"), (0, "deadlocked_locks")])
def test_siblings_that_inherited_a_pipe_are_not_to_blame_for_one_that_died(signal: int, cause: str) -> None:
    """All queues were there before the forks; the living one waits for its next order. One that ended well leaves nobody waiting."""
    history, dead = reader(writers=(CHILD,)), CHILD + 1
    for child in (CHILD, dead):
        history.add(0.0, process(child, FIRST, "python train.py"))
    history.add(STOPPED, ProcessEnded(pid=dead, start_ticks=dead, signal=signal, exit_code=0))
    stands(history, CHILD, (Frame("simulate", TRAIN, 60), MODULE), READS, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, Descriptor(pid=CHILD, fd=3, kind="pipe", target="pipe:[8]", access="r", inode=8,
                                   readers=(CHILD,), writers=(FIRST,)))  # fmt: skip

    verdict = verdict_of(history, 8.0)

    assert (verdict.state, verdict.cause) == ("hung", cause)
    assert (verdict.culprits[0].worker_pid == dead) is (cause == "dead_worker")


@pytest.mark.parametrize(("share", "cause"), [(0.9, None), (0.05, "stuck_worker")])
def test_a_thread_that_computes_is_asked_before_processes_that_stand(share: float, cause: str | None) -> None:
    """They may have inherited the write end only; a thread that does next to nothing fills no queue."""
    history = reader(writers=(FIRST, CHILD))
    history.add(0.0, process(CHILD, FIRST, "python train.py"))
    stands(history, CHILD, (Frame("fetch", TRAIN, 60), *STARTED), FOR_EVER, UNTIL)
    runs(history, FIRST, MAKES, STOPPED, UNTIL, tid=MAKER, share=share)

    verdict = verdict_of(history, 80.0)

    assert (verdict.cause if verdict.state == "hung" else None) == cause


@pytest.mark.parametrize(("kind", "waited"), [("pipe", 8.0), ("fifo", 62.0)])
def test_a_pipe_that_nobody_is_left_to_fill_hangs_within_seconds(kind: str, waited: float) -> None:
    """A FIFO is held open for writing by its own reader, and a thread beside it that runs is to write nothing there.

    Anybody may open a FIFO: it is given the patience.
    """
    history = reader(kind)
    if kind == "fifo":
        runs(history, FIRST, MAKES, STOPPED, UNTIL, tid=MAKER)
        assert verdict_of(history, 8.0).state == "inconclusive"

    verdict = verdict_of(history, waited)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_pipe")
