"""Whoever stands still while somebody works for it does not hang: other threads of its process, a child, or what that started."""

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, PolledFile, Socket, SourceLine, Wait
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
    looks,
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


def senders(history: History, pid: int, bytes_per_second: float, share: float, until: float = UNTIL) -> None:
    """Threads that send parts of a file, each with a socket that has a timeout, as Python's mostly have."""
    for number in range(SENDERS):
        fd = 20 + number
        ready = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=fd, events=4),), remaining_seconds=50.0)
        runs(history, pid, (PART,), STOPPED, until, tid=pid + 1000 + number, share=share, wait=ready)
        sends(history, pid, fd, bytes_per_second, until)


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


POSTS: Frames = (Frame("readinto", LIB + "socket.py", 706), Frame("best_of", TRAIN, 28), MODULE)
SAMPLES: tuple[Frames, ...] = (
    (Frame("sample", "/app/sampler.py", 17), *ROOT),
    (Frame("do_POST", "/app/sampler.py", 28), *ROOT),
)
ANSWER = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=4, events=1),), remaining_seconds=1800.0)
SERVES = Wait(call="poll", number=7, kind="poll", polled=(PolledFile(fd=3, events=1),), remaining_seconds=0.2)
LONG = STOPPED + 400.0


def asks(server_share: float, switches_per_second: float = 20.0) -> History:
    """A training thread that waits for the answer of a server which it has started; a thread of that runs for a share of the time."""
    history = job(1)
    history.add(STOPPED, process(CHILD, FIRST, "python sampler.py"))
    stands(history, FIRST, POSTS, ANSWER, LONG)
    for at in looks(STOPPED, LONG):
        socket = Socket(family="tcp", state="ESTABLISHED", local="127.0.0.1:5", peer="127.0.0.1:6", peer_pids=(CHILD,),
                        received_ago_seconds=at - STOPPED, received_bytes=0, sent_bytes=111)  # fmt: skip
        history.add(at, Descriptor(pid=FIRST, fd=4, kind="socket", target="socket:[4]", inode=4, socket=socket))
    runs(history, CHILD, (), STOPPED, LONG, share=0.001, wait=SERVES)
    runs(
        history,
        CHILD,
        SAMPLES,
        STOPPED,
        LONG,
        tid=CHILD + 1,
        share=server_share,
        switches_per_second=switches_per_second,
    )
    uses(history, CHILD, server_share, 0.0, LONG)
    return history


@pytest.mark.parametrize("waited", [8.0, 80.0, 390.0])
def test_a_server_that_computes_since_it_was_asked_is_at_the_answer(waited: float) -> None:
    """A thread of it runs at a core all the while, and waits for nothing."""
    verdict = judged(asks(0.95, switches_per_second=0.1), STOPPED + waited)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


def test_a_server_that_serves_others_meanwhile_is_given_more_time_and_no_more() -> None:
    """Its threads wait for the next request again and again: this one may be lost."""
    history = asks(0.3)

    states = [judged(history, STOPPED + waited).state for waited in (8.0, 80.0, 250.0)]
    late = judged(history, STOPPED + 320.0)

    assert states == ["busy"] * 3
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_network", 0.65)


def test_a_server_that_only_looks_for_visitors_has_lost_the_request() -> None:
    """It uses next to nothing."""
    verdict = judged(asks(0.005), STOPPED + 80.0)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")


@pytest.mark.parametrize("share", [0.03, 0.3])
@pytest.mark.parametrize("waited", [80.0, 390.0])
def test_threads_that_upload_after_training_are_at_work_for_as_long_as_it_takes(share: float, waited: float) -> None:
    """A checkpoint of a terabyte: they use little CPU time and wait again and again."""
    history, now = job(1), STOPPED + waited
    stands(history, FIRST, UPLOADS, FOR_EVER, now)
    senders(history, FIRST, 5e6, share, now)

    assert judged(history, now).state == "busy"


LOCK = Wait(call="flock", number=73, kind="lock", fd=5, forever=True)
LOCKS: Frames = (Frame("tokens", TRAIN, 35), MODULE)
MAPS: Frames = (*EVENT, Frame("get", LIB + "multiprocessing/pool.py", 768), Frame("tokens", TRAIN, 39), MODULE)
TOKENISES: tuple[Frames, ...] = (
    (Frame("tokenise", TRAIN, 26), Frame("worker", LIB + "multiprocessing/pool.py", 125)),
    (Frame("tokenise", TRAIN, 27), Frame("worker", LIB + "multiprocessing/pool.py", 125)),
)


@pytest.mark.parametrize(("share", "state"), [(0.95, "busy"), (0.0, "hung")])
@pytest.mark.parametrize("waited", [70.0, 200.0])
def test_who_holds_a_lock_works_by_what_it_has_started(share: float, state: str, waited: float) -> None:
    """One rank fills a cache with a pool, under a lock that the other one waits for."""
    history, until = job(2, trained=False), STOPPED + 210.0
    history.add(STOPPED, process(CHILD, FIRST, "python train.py"))
    for line in (26, 27):
        history.add(STOPPED, SourceLine(file=TRAIN, line=line, text="", loops=("for",)))
    stands(history, FIRST, MAPS, FOR_EVER, until)
    stands(history, FIRST + 1, LOCKS, LOCK, until)
    for at in looks(STOPPED, until):
        history.add(at, Descriptor(pid=FIRST + 1, fd=5, kind="file", target="/data/tokens.lock", lock_holders=(FIRST,)))
    if share:
        runs(history, CHILD, TOKENISES, STOPPED, until, share=share)
    else:
        stands(history, CHILD, TOKENISES[0], FOR_EVER, until)
    for pid, used in ((CHILD, share), (FIRST, 0.0), (FIRST + 1, 0.0)):
        uses(history, pid, used, 0.0, until)

    assert judged(history, STOPPED + waited).state == state


RECEIVES: Frames = (
    Frame("recv", LIB + "site-packages/torch/distributed/distributed_c10d.py", 2400),
    Frame("take", TRAIN, 53),
    MODULE,
)


RESTS = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=40.0)


@pytest.mark.parametrize(
    ("share", "rest", "calls", "waited", "state"),
    [
        (0.9, None, (), 70.0, "inconclusive"),
        (0.005, SERVES, ("is_set", "sleep", "write"), 70.0, "hung"),
        (0.005, SERVES, ("is_set", "sleep", "forward"), 70.0, "inconclusive"),
        (0.0, RESTS, ("is_set", "sleep"), 70.0, "inconclusive"),
        (0.0, RESTS, ("is_set", "sleep"), 310.0, "hung"),
    ],
    ids=["works", "heartbeat", "hands over", "rests", "rests for long"],
)
def test_while_a_thread_prepares_what_all_wait_to_receive_nobody_hangs(
    share: float, rest: Wait | None, calls: tuple[str, ...], waited: float, state: str
) -> None:
    """A dispatcher of rank 0 sends when it is done, or has rested; a heartbeat beside them sends nothing."""
    history, until = job(2), STOPPED + waited + 10.0
    for pid in (FIRST, FIRST + 1):
        stands(history, pid, RECEIVES, FOR_EVER, until)
    if rest is None or share:
        runs(history, FIRST, (BEAT,), STOPPED, until, tid=FIRST + 1000, share=share, wait=rest)
    else:
        stands(history, FIRST, BEAT, rest, until, tid=FIRST + 1000)
    history.add(STOPPED, SourceLine(file="/app/beat.py", line=4, text="", loops=("while",), loop_calls=calls))

    verdict = judged(history, STOPPED + waited)

    assert verdict.state == state
    assert not rest or verdict.confidence <= (0.8 if rest == SERVES else 0.7)
