"""Child processes: what a parent waits for, and whether the child is at work."""

import pytest
from msgspec.structs import replace

from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Frame, ProcessEnded, ProcessUsage, Socket, Wait
from tests.recorded import RECORDINGS
from tests.triage.rank_looks import (
    BEGAN,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STOPPED,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)
from tests.triage.retold import retold

# An event loop that awaits a child hears of its end by a pidfd or by a signal: who brings that about is the child.


LOOP: Frames = (
    Frame("select", LIB + "selectors.py", 468),
    Frame("_run_once", LIB + "asyncio/base_events.py", 1890),
    Frame("run_forever", LIB + "asyncio/base_events.py", 607),
    Frame("run", LIB + "asyncio/runners.py", 190),
    MODULE,
)
POLLS = Wait(call="epoll_wait", number=232, kind="poll", fd=3, forever=True)
CONVERTS: tuple[Frames, ...] = ((Frame("bucket", "/app/convert.py", 9),), (Frame("<module>", "/app/convert.py", 19),))
WAITS: Frames = (Frame("load", "/app/convert.py", 7), Frame("<module>", "/app/convert.py", 19))
CHILD, UNTIL = 300, STOPPED + 90.0
PIDFD = "anon_inode:[pidfd]"


def awaits(*files: Descriptor) -> History:
    """A main thread in its event loop, which watches these."""
    history = job(1)
    history.add(STOPPED, process(CHILD, FIRST, "python convert.py"))
    stands(history, FIRST, LOOP, POLLS, UNTIL)
    loop = Descriptor(
        pid=FIRST, fd=3, kind="epoll", target="anon_inode:[eventpoll]", watched=tuple(f.fd for f in files)
    )
    for at in looks(STOPPED, UNTIL):
        for file in (loop, *files):
            history.add(at, file)
    return history


def pidfd(watched: int | None) -> Descriptor:
    """As told today; by an earlier version of the probe, without its process and by another name."""
    kind = "other" if watched is None else "pidfd"
    return Descriptor(pid=FIRST, fd=6, kind=kind, target=PIDFD, watched_pid=watched)


def connection() -> Descriptor:
    """On which nothing comes."""
    socket = Socket(
        family="tcp", state="ESTABLISHED", local="10.0.0.1:5", peer="52.0.0.1:443", received_ago_seconds=80.0
    )
    return Descriptor(pid=FIRST, fd=4, kind="socket", target="socket:[4]", inode=4, socket=socket)


@pytest.mark.parametrize("files", [(pidfd(CHILD),), (pidfd(None),), (), (connection(), pidfd(CHILD)), (connection(),)])
def test_a_loop_whose_child_works_waits_for_work(files: tuple[Descriptor, ...]) -> None:
    """By whatever it would hear of the child's end: without a pidfd it is a signal (uvloop, CPython before 3.12)."""
    history = awaits(*files)
    runs(history, CHILD, CONVERTS, STOPPED, UNTIL)
    uses(history, CHILD, 0.95, 0.0, UNTIL)

    verdict = judged(history, STOPPED + 80.0)

    assert verdict.state != "hung"
    if files != (connection(),):  # a connection that is silent meanwhile is what it waits for, or is not
        assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


@pytest.mark.parametrize("watched", [CHILD, None])
def test_a_loop_whose_child_stands_is_blamed_on_the_child(watched: int | None) -> None:
    """It waits for a lock for ever."""
    history = awaits(pidfd(watched))
    stands(history, CHILD, WAITS, FOR_EVER, UNTIL)
    uses(history, CHILD, 0.0, 0.0, UNTIL)

    verdict = judged(history, STOPPED + 80.0)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_child")


def test_a_loop_without_children_has_nothing_due() -> None:
    """Nobody brings a task of it on."""
    history = job(1)
    stands(history, FIRST, LOOP, POLLS, UNTIL)
    history.add(STOPPED, Descriptor(pid=FIRST, fd=3, kind="epoll", target="anon_inode:[eventpoll]"))

    verdict = judged(history, STOPPED + 80.0)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")


def test_a_server_that_is_never_to_end_does_not_hide_a_silent_connection() -> None:
    """Its pidfd is watched as well, and it is at rest."""
    history = awaits(pidfd(CHILD), connection())
    stands(history, CHILD, WAITS, FOR_EVER, UNTIL)
    uses(history, CHILD, 0.0, 0.0, UNTIL)

    verdict = judged(history, STOPPED + 80.0)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")


# A shell script that the training thread waits for: what its brief programs are loaded from is no work, what they write is.


CHILD_AT_REST_WAITS: Frames = (Frame("wait", LIB + "subprocess.py", 1264), Frame("fetch", "/app/train.py", 30), MODULE)
SCRIPT, STARTED = 300, 301  # and the numbers that follow
CHILD_AT_REST_UNTIL = STOPPED + 140.0
LIBRARIES = 110 * 1024.0  # bytes per second, measured: grep and sleep, five times a second
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.1)


def waits(
    *names: str,
    read: float = LIBRARIES,
    written: float = 0.0,
    fetched: float = 0.0,
    computed: float = 0.013,
) -> History:
    """A script starts these programs in turn, and they use so much of each second."""
    history = job(1)
    history.add(STOPPED, process(SCRIPT, FIRST, "bash wait_for_features.sh status.json"))
    stands(
        history,
        FIRST,
        CHILD_AT_REST_WAITS,
        Wait(call="wait4", number=61, kind="child", forever=True, child_pid=SCRIPT),
        CHILD_AT_REST_UNTIL,
    )
    reaps = Wait(call="wait4", number=61, kind="child", forever=True, child_pid=-1)
    runs(history, SCRIPT, (), STOPPED, CHILD_AT_REST_UNTIL, share=0.1 * computed, wait=reaps, name="bash")
    for number, at in enumerate(looks(STOPPED, CHILD_AT_REST_UNTIL)):
        seconds, pid = at - STOPPED, STARTED + number
        history.add(at, ProcessUsage(pid=SCRIPT, state="S", threads=1, cpu_seconds=0.1 * computed * seconds,
                                     children_cpu_seconds=0.9 * computed * seconds, major_faults=0, minor_faults=0,
                                     resident_bytes=2**21, read_chars=int(read * seconds), written_chars=int(written * seconds),
                                     read_bytes=int(fetched * seconds)))  # fmt: skip
        history.add(
            at, replace(process(pid, SCRIPT, (names or ("sleep",))[number % max(1, len(names))]), age_seconds=0.1)
        )
        stands(history, pid, (), NAP, at + 0.5, at)
        history.add(at + 0.4, ProcessEnded(pid=pid, start_ticks=pid))
    return history


def test_a_script_that_asks_and_sleeps_again_and_again_is_named_after_twice_the_patience() -> None:
    """It looks for a word in a file that nobody will write."""
    history = waits()
    soon, late = judged(history, STOPPED + 80.0), judged(history, STOPPED + 130.0)

    assert (soon.state, soon.suspect and soon.suspect.cause) == ("inconclusive", "blocked_child")
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_child", 0.65)
    assert "wait_for_features.sh" in late.summary
    assert "starts brief programs and sleeps in between" in late.summary


@pytest.mark.parametrize(
    "used",
    [
        {"written": 8192.0},  # a copy of small files at the pace of their store
        {"fetched": 65536.0},  # sums over files on a slow disk
        {"computed": 0.4},  # words are counted
        {"read": 3e6},  # more than libraries
    ],
)
def test_a_script_whose_brief_programs_work_is_waited_for(used: dict[str, float]) -> None:
    """However much it sleeps in between."""
    verdict = judged(waits(**used), STOPPED + 130.0)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


def test_a_script_that_is_not_seen_to_sleep_is_not_said_to_hang() -> None:
    """What it starts uses little, but nobody knows what that is about."""
    assert judged(waits("rsync", "ssh", "sleep"), STOPPED + 130.0).state != "hung"


@pytest.mark.parametrize(
    ("sleeps", "seconds", "state"),
    [(200.0, 30.0, "busy"), (200.0, 130.0, "busy"), (290.0, 30.0, "inconclusive"), (290.0, 130.0, "hung")],
)
def test_a_child_that_sleeps_for_a_while_is_no_hang_and_one_that_sleeps_for_minutes_is(
    sleeps: float, seconds: float, state: str
) -> None:
    """``subprocess.run(["sleep", "200"])``, whatever the patience: a cool-down, a window, a round of others."""
    history, until = job(1), STOPPED + seconds
    history.add(STOPPED, process(SCRIPT, FIRST, f"sleep {sleeps:.0f}"))
    waits_for_it = Wait(call="wait4", number=61, kind="child", forever=True, child_pid=SCRIPT)
    stands(history, FIRST, CHILD_AT_REST_WAITS, waits_for_it, until)
    rest = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=sleeps)
    stands(history, SCRIPT, (), rest, until)
    for at in looks(STOPPED, until):
        history.add(at, ProcessUsage(pid=SCRIPT, state="S", threads=1, cpu_seconds=0.001, children_cpu_seconds=0.0,
                                     major_faults=0, minor_faults=0, resident_bytes=2**20, read_chars=0, written_chars=0))  # fmt: skip
    said = judged(history, until)

    assert said.state == state
    assert ("wakes in" in said.summary) == (state == "busy")


# Numbers of processes are used again: what a reading names as a parent need not be one.


def test_a_parent_that_is_younger_than_its_child_is_none() -> None:
    """The number of a parent that has ended was used again, by a descendant even: nobody goes round in a circle."""
    history = History()
    history.add(0.0, process(FIRST, FIRST + 1, "python train.py"))
    history.add(0.0, process(FIRST + 1, FIRST, "sleep 10"))
    runs(history, FIRST, STEP, BEGAN, STOPPED)

    assert judged(history, STOPPED).state == "healthy"


# A child does not end before what it put into a queue is taken: whoever joins it first waits for itself.


JOINS: Frames = (
    Frame("poll", LIB + "multiprocessing/popen_fork.py", 27),
    Frame("join", LIB + "multiprocessing/process.py", 149),
    Frame("collect", "/app/train.py", 33),
    MODULE,
)
ENDS: Frames = (
    Frame("_wait_for_tstate_lock", LIB + "threading.py", 1139),
    Frame("join", LIB + "threading.py", 1119),
    Frame("_finalize_join", LIB + "multiprocessing/queues.py", 215),
    Frame("_exit_function", LIB + "multiprocessing/util.py", 334),
    Frame("_bootstrap", LIB + "multiprocessing/process.py", 317),
)
FEEDS: Frames = (
    Frame("_send", LIB + "multiprocessing/connection.py", 384),
    Frame("_feed", LIB + "multiprocessing/queues.py", 270),
    Frame("run", LIB + "threading.py", 982),
)
FEEDER, SIBLING = CHILD + 1, CHILD + 10


@pytest.mark.parametrize("drained", [False, True])
def test_who_joins_a_child_before_its_queue_is_read_is_the_culprit(drained: bool) -> None:
    """The child's feeder writes into a full pipe that only its parent reads: a sibling that has the read end is at its own end.

    Where a thread of the parent reads, all goes on.
    """
    history = job(1)
    history.add(STOPPED, process(CHILD, FIRST, "python train.py"))
    stands(history, FIRST, JOINS, Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True), UNTIL)
    history.add(STOPPED, process(SIBLING, FIRST, "python train.py"))
    for child in (CHILD, SIBLING):
        stands(history, child, ENDS, FOR_EVER, UNTIL)
    writes = Wait(call="write", number=1, kind="write", fd=7, forever=True)
    if drained:
        runs(history, CHILD, (FEEDS,), STOPPED, UNTIL, tid=FEEDER, share=0.2, wait=writes, bytes_per_second=1e7)
        uses(history, CHILD, 0.2, 1e7, UNTIL)
    else:
        stands(history, CHILD, FEEDS, writes, UNTIL, tid=FEEDER)
    for at in looks(STOPPED, UNTIL):
        for pid, fd, access in ((CHILD, 7, "w"), (FIRST, 6, "r")):
            history.add(at, Descriptor(pid=pid, fd=fd, kind="pipe", target="pipe:[9]", access=access, inode=9,
                                       readers=(FIRST, CHILD, SIBLING), writers=(FIRST, CHILD)))  # fmt: skip

    verdict = judged(history, UNTIL)

    assert (verdict.state == "hung") is not drained
    if not drained:
        assert verdict.cause == "blocked_child"
        assert [one.frame for one in verdict.culprits] == ["collect (train.py:33)"]
        assert "empty the queue before join()" in verdict.next[0]


# A pool of which one worker waits for orders, perhaps for ever, while another one is at its task.


def test_a_thread_that_waits_for_orders_makes_no_hang_of_a_pool_whose_other_thread_works() -> None:
    """Whose result is waited for is not known from outside."""
    verdict = retold(RECORDINGS / "waiting_on_work" / "fires" / "pool_beside_a_thread_that_takes_orders")

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "thread ThreadPoolExecutor-1_1 at crunch" in verdict.summary


def test_nor_does_a_child_of_the_pool_and_the_one_at_work_is_told_as_perhaps_the_one() -> None:
    """Nothing is said of the pipe at which the first one waits."""
    verdict = retold(RECORDINGS / "blocked_pipe" / "lookalike" / "pool_beside_a_child_that_takes_orders")

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "process 3411 at crunch" in verdict.summary


RESULT = (Frame("wait", LIB + "threading.py", 327), Frame("result", LIB + "concurrent/futures/_base.py", 451), MODULE)


@pytest.mark.parametrize(("workers", "cause"), [(0, "dead_worker"), (1, None)])
def test_a_pool_whose_workers_have_all_retired_gives_no_result(workers: int, cause: str | None) -> None:
    """Some pools start no others; nothing is left of those that ended, and only the thread that serves the pool tells of it."""
    history, serves = job(1), LIB + "concurrent/futures/process.py"
    stands(history, FIRST, RESULT, FOR_EVER, UNTIL)
    manager = (Frame("wait_result_broken_or_wakeup", serves, 417), Frame("run", serves, 344))
    stands(history, FIRST, manager, Wait(call="poll", number=7, kind="poll", forever=True), UNTIL, tid=FIRST + 40)
    for pid in range(FIRST + 50, FIRST + 50 + workers):
        history.add(0.0, process(pid, FIRST, "python -c spawn_main --multiprocessing-fork"))
        runs(history, pid, [(Frame("describe", MODULE.file, 9), Frame("_process_worker", serves, 256))], STOPPED, UNTIL)

    assert judged(history, STOPPED + 10.0).cause == cause
