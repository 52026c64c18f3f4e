"""Whoever stands still while somebody works for it does not hang: other threads of its process, a child, or what that started."""

import pytest

from perfwatch.probes.readings import Frame, PolledFile, Wait
from perfwatch.triage.history import History
from perfwatch.triage.verdict import Verdict
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    process,
    runs,
    sends,
    stands,
    uses,
)

THREADS = LIB + "threading.py"
ROOT = (Frame("run", THREADS, 982), Frame("_bootstrap", THREADS, 1002))
EVENT = (Frame("wait", THREADS, 331), Frame("wait", THREADS, 629))
UPLOADS: Frames = (*EVENT, Frame("push", TRAIN, 81), MODULE)
PART: Frames = (Frame("sendall", LIB + "ssl.py", 1233), Frame("put_part", "/app/store.py", 9), *ROOT)
BEAT: Frames = (Frame("beat", "/app/beat.py", 4), *ROOT)
STARTS: Frames = (Frame("wait", LIB + "subprocess.py", 1264), Frame("push", TRAIN, 82), MODULE)
AT_EXIT: Frames = (Frame("wait", LIB + "subprocess.py", 1264), Frame("push", TRAIN, 82))
CHILD, GRANDCHILD, UNTIL = 300, 301, STOPPED + 80.0
CHILD_ENDS = Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True)
SENDERS = 6


def senders(history: History, pid: int, bytes_per_second: float, share: float) -> None:
    """Threads that send parts of a file, each with a socket that has a timeout, as Python's mostly have."""
    for number in range(SENDERS):
        fd = 20 + number
        ready = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=fd, events=4),), remaining_seconds=50.0)
        runs(history, pid, (PART,), STOPPED, UNTIL, tid=pid + 1000 + number, share=share, wait=ready)
        sends(history, pid, fd, bytes_per_second, UNTIL)


def others_wait(history: History, ranks: int) -> None:
    """In a barrier."""
    for rank in range(1, ranks):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, UNTIL)


def verdict_of(history: History) -> Verdict:
    """Well beyond the patience."""
    return judged(history, UNTIL)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("share", [0.005, 0.06])
def test_an_upload_by_threads_of_the_rank_itself_is_work(ranks: int, share: float) -> None:
    """The training thread waits for an event, the others for the rank; the bytes that go out tell, however little CPU it takes."""
    history = job(ranks)
    stands(history, FIRST, UPLOADS, FOR_EVER, UNTIL)
    senders(history, FIRST, 8e6, share)
    others_wait(history, ranks)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "hung" not in {one.state for one in verdict.findings}


@pytest.mark.parametrize(("waited", "state"), [(6.0, "inconclusive"), (50.0, "busy")])
def test_threads_that_work_beside_a_short_wait_may_yet_hand_its_lock_over(waited: float, state: str) -> None:
    """A contended lock looks so until it has come back a few times; only a longer wait is told as work."""
    history, now = job(1), STOPPED + waited
    stands(history, FIRST, UPLOADS, FOR_EVER, now)
    runs(history, FIRST, (PART,), STOPPED, now, tid=FIRST + 1000, share=0.9)

    assert judged(history, now).state == state


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_heartbeat_and_its_log_beside_a_thread_that_waits_in_vain_are_no_work(ranks: int) -> None:
    """It wakes ten times a second and sends a line now and then."""
    history = job(ranks)
    stands(history, FIRST, UPLOADS, FOR_EVER, UNTIL)
    ready = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=20, events=4),), remaining_seconds=0.1)
    runs(history, FIRST, (BEAT,), STOPPED, UNTIL, tid=FIRST + 1000, share=0.01, wait=ready)
    sends(history, FIRST, 20, 500.0, UNTIL)
    others_wait(history, ranks)

    assert verdict_of(history).state == "hung"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("frames", [STARTS, AT_EXIT])
def test_a_child_whose_main_thread_is_parked_works_where_its_other_threads_do(ranks: int, frames: Frames) -> None:
    """A copying program in Go: nobody knows its threads by name."""
    history = job(ranks)
    history.add(STOPPED, process(CHILD, FIRST, "rclone copy"))
    stands(history, FIRST, frames, CHILD_ENDS, UNTIL)
    stands(history, CHILD, (), FOR_EVER, UNTIL)
    runs(history, CHILD, (), STOPPED, UNTIL, tid=CHILD + 1, share=0.05)
    uses(history, CHILD, 0.25, 3e7, UNTIL)
    others_wait(history, ranks)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "hung" not in {one.state for one in verdict.findings}


@pytest.mark.parametrize("frames", [STARTS, AT_EXIT])
def test_a_child_that_does_nothing_but_hold_the_rank_up_still_hangs(frames: Frames) -> None:
    """All its threads are parked."""
    history = job(1)
    history.add(STOPPED, process(CHILD, FIRST, "rclone copy"))
    stands(history, FIRST, frames, CHILD_ENDS, UNTIL)
    stands(history, CHILD, (), FOR_EVER, UNTIL)
    uses(history, CHILD, 0.0, 0.0, UNTIL)

    assert verdict_of(history).state == "hung"


def test_the_threads_of_a_process_group_that_spin_while_the_ranks_wait_are_no_work() -> None:
    """NCCL's proxy looks for news at a full core."""
    history = job(2)
    stands(history, FIRST, UPLOADS, FOR_EVER, UNTIL)
    runs(history, FIRST, (), STOPPED, UNTIL, tid=FIRST + 1000, name="NCCL Progress 0")
    others_wait(history, 2)

    assert verdict_of(history).state == "hung"


def test_a_doubtful_wait_of_one_rank_does_not_hide_a_sure_one_of_another() -> None:
    """A lock that may yet be handed over, and a child that converts."""
    history, now = job(2), STOPPED + 10.0
    stands(history, FIRST, UPLOADS, FOR_EVER, now)
    runs(history, FIRST, (PART,), STOPPED, now, tid=FIRST + 1000, share=0.9)
    history.add(STOPPED, process(CHILD, FIRST + 1, "convert"))
    stands(history, FIRST + 1, STARTS, CHILD_ENDS, now)
    runs(history, CHILD, (), STOPPED, now)
    uses(history, CHILD, 0.95, 3e7, now)

    verdict = judged(history, now)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert [one.worker_pid for one in verdict.culprits] == [CHILD]
