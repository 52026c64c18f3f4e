"""A wait that somebody may end whom no chain shows is given the whole patience; one that nobody can end is not."""

import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Descriptor, Frame, Process, ProcessUsage, Reading, SourceLine, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.triage.rank_looks import FIRST, LIB, MODULE, STOPPED, TRAIN, Frames, job, judged, looks, runs, stands
from tests.triage.retold import retold, same

QUEUE = RECORDINGS / "deadlocked_locks" / "fires" / "producer_raised"
LOCK = RECORDINGS / "deadlocked_locks" / "fires" / "deadlocked_locks"
WATCHED = RECORDINGS / "deadlocked_locks" / "lookalike" / "folder_that_is_watched"
FIFO = RECORDINGS / "blocked_pipe" / "lookalike" / "orders_over_a_fifo"
PAUSE = RECORDINGS / "blocked_pipe" / "lookalike" / "pause_on_a_pipe_of_its_own"
FLUSHER = RECORDINGS / "hung_at_exit" / "lookalike" / "flusher_with_a_time_limit"
RECEIVES = Wait(call="recvmsg", number=47, kind="recv", fd=9, forever=True)
POLLS = Wait(call="poll", number=7, kind="poll", forever=True)
PARKED = Wait(call="futex", number=202, kind="futex", forever=True)
THREADS, QUEUES = LIB + "threading.py", LIB + "queue.py"
ROOT: Frames = (Frame("run", THREADS, 982), Frame("_bootstrap", THREADS, 1002))
ASKS: Frames = (
    Frame("Condition.wait", THREADS, 327),
    Frame("Queue.get", QUEUES, 171),
    Frame("loop", TRAIN, 30),
    MODULE,
)
ROTATES: Frames = (Frame("rotate", TRAIN, 40), *ROOT)
CLIENT: Frames = (Frame("clients", TRAIN, 50), *ROOT)
LOGS: Frames = (Frame("log", TRAIN, 26), MODULE)


def main_of(case: Path) -> int:
    """The process of a case that has one rank."""
    return load_case(case).session.root_pids[0]


def used(pid: int, cpu_seconds: float) -> ProcessUsage:
    """By a process of one thread."""
    return ProcessUsage(pid=pid, state="S", threads=1, cpu_seconds=cpu_seconds, major_faults=0, minor_faults=0,
                        resident_bytes=2**30)  # fmt: skip


def caught(*numbers: int) -> int:
    """Those signals as the mask that the kernel gives."""
    return sum(1 << (number - 1) for number in numbers)


@pytest.mark.parametrize(
    ("name", "wait", "hung"),
    [
        ("rdk:broker1", RECEIVES, False),
        ("camera", POLLS, False),
        ("camera", PARKED, True),
        ("pt_autograd_0", POLLS, True),
        ("cuda-EvtHandlr", POLLS, True),
    ],
)
def test_native_code_that_listens_may_bring_what_a_queue_lacks(name: str, wait: Wait, hung: bool) -> None:
    """Not torch's threads nor CUDA's, and none that only waits for another one of its process."""
    pid = main_of(QUEUE)
    thread = Thread(pid=pid, tid=pid + 5000, name=name, state="S", cpu_seconds=0.1, ran_ago_seconds=30.0, wait=wait)

    assert (retold(QUEUE, same, thread).state == "hung") is hung


TAKES: Frames = (Frame("acquire", f"{LIB}site-packages/tqdm/std.py", 102), Frame("emit", TRAIN, 30), MODULE)
MONITOR: Frames = (TAKES[0], Frame("run", f"{LIB}site-packages/tqdm/_monitor.py", 84), ROOT[1])


@pytest.mark.parametrize(("unlinked", "state"), [(True, "hung"), (False, "inconclusive")])
def test_a_lock_between_processes_without_a_name_is_shared_with_forks_only(unlinked: bool, state: str) -> None:
    """There are none: its own threads could release it, of which one serves the library and waits for the very lock."""
    history, until = job(1), STOPPED + 20.0
    lock = msgspec.structs.replace(PARKED, shared=True, futex_unlinked=unlinked)
    stands(history, FIRST, TAKES, lock, until)
    stands(history, FIRST, MONITOR, lock, until, tid=FIRST + 1)
    history.add(until, SourceLine(file=TAKES[0].file, line=102, text="lock.acquire()", calls=("lock.acquire",)))

    assert judged(history, STOPPED + 12.0).state == state


@pytest.mark.parametrize(("left", "hung"), [((0.009, 0.002), True), ((0.08, 0.002), False)])
def test_the_thread_that_moves_gloos_bytes_brings_nothing_into_a_queue(left: tuple[float, float], hung: bool) -> None:
    """It waits 10 ms at a time at each look; another one that listens may have as little left at one."""
    pid = main_of(QUEUE)
    group = Thread(pid=pid, tid=pid + 5001, name="pt_gloo_runloop", state="S", cpu_seconds=0.1, wait=PARKED)
    looks = [
        Thread(pid=pid, tid=pid + 5000, name="python", state="S", cpu_seconds=0.1,
               wait=Wait(call="epoll_wait", number=232, kind="poll", fd=6, remaining_seconds=one))
        for one in left
    ]  # fmt: skip

    assert (retold(QUEUE, same, group, *looks).state == "hung") is hung


@pytest.mark.parametrize(("case", "hung"), [(QUEUE, False), (LOCK, True)])
def test_a_handler_may_put_something_into_a_queue_and_gives_no_lock_back(case: Path, hung: bool) -> None:
    """SIGUSR1 is caught."""

    usage = msgspec.structs.replace(used(main_of(case), 1.0), signals_caught=caught(signal.SIGUSR1))

    assert (retold(case, same, usage).state == "hung") is hung


@pytest.mark.parametrize(("command", "hung"), [(("sort", "-u"), False), ((), True)])
def test_a_child_that_ends_may_bring_what_a_queue_lacks_to_who_catches_its_signal(
    command: tuple[str, ...], hung: bool
) -> None:
    """SIGCHLD tells nothing to who has no child."""
    pid = main_of(QUEUE)
    usage = msgspec.structs.replace(used(pid, 1.0), signals_caught=caught(signal.SIGCHLD))
    child = Process(pid=pid + 7000, start_ticks=10**9, parent_pid=pid, name="sort", command=command)

    assert (retold(QUEUE, same, usage, *([child] if command else [])).state == "hung") is hung


def test_an_event_loop_that_watches_nothing_of_the_kernels_has_nobody_to_wake_it() -> None:
    """The same loop, without the folder."""

    def changed(reading: Reading) -> Reading:
        watched = isinstance(reading, Descriptor) and "inotify" in reading.target
        return msgspec.structs.replace(reading, target="/dev/null", kind="file") if watched else reading

    assert retold(WATCHED).state == "inconclusive"
    assert retold(WATCHED, changed).cause == "deadlocked_locks"


@pytest.mark.parametrize(("kind", "own", "hung"), [("fifo", True, False), ("pipe", True, True), ("pipe", False, False)])
def test_only_a_pipe_whose_ends_are_both_its_own_has_nobody_to_come(kind: str, own: bool, hung: bool) -> None:
    """A FIFO is opened by its name; a pipe that nobody is seen to hold has somebody where this tool cannot look."""
    pid = main_of(FIFO)

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or reading.kind != "fifo":
            return reading
        return msgspec.structs.replace(reading, kind=kind, writers=(pid,) if own else ())

    verdict = retold(FIFO, changed)

    assert (verdict.state == "hung") is hung
    assert hung or "cannot be seen" in verdict.summary or kind == "fifo"


@pytest.mark.parametrize(
    ("share", "wait", "waited", "state"),
    [
        (0.0, PARKED, 8.0, "hung"),
        (0.0, Wait(call="read", number=0, kind="read", fd=0, forever=True), 8.0, "hung"),
        (0.0, Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=100.0), 80.0, "busy"),
        (0.0, RECEIVES, 8.0, "inconclusive"),
        (0.0, RECEIVES, 65.0, "hung"),
        (0.5, None, 80.0, "busy"),
    ],
    ids=["rests", "asks for a key", "sleeps", "hears of something else", "heard of nothing", "works"],
)
def test_a_full_pipe_is_stuck_where_its_reader_outside_of_the_job_asks_elsewhere(
    share: float, wait: Wait | None, waited: float, state: str
) -> None:
    """One that works or wakes will read on, and of one that waits for others nobody knows."""
    history, until, reader = job(1), STOPPED + 90.0, 900
    stands(history, FIRST, LOGS, Wait(call="write", number=1, kind="write", fd=1, forever=True), until)
    pipe = Descriptor(pid=FIRST, fd=1, kind="pipe", target="pipe:[7]", access="w", readers=(reader,), writers=(FIRST,))
    for at in looks(STOPPED, until):
        history.add(at, pipe)
        history.add(at, used(reader, (at - STOPPED) * share))
    if wait is None:
        runs(history, reader, (), STOPPED, until, share=share)
    else:
        stands(history, reader, (), wait, until)

    verdict = judged(history, STOPPED + waited)

    assert verdict.state == state
    assert state != "hung" or (verdict.cause == "blocked_pipe" and (verdict.confidence > 0.8) is (wait == PARKED))


def test_a_pause_that_is_over_at_a_time_is_one_until_then() -> None:
    """Without a limit nobody ends it: both ends of the pipe are its own."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Thread) or reading.wait is None or reading.wait.kind != "poll":
            return reading
        return msgspec.structs.replace(
            reading, wait=msgspec.structs.replace(reading.wait, remaining_seconds=None, forever=True)
        )

    assert retold(PAUSE).state != "hung"
    assert retold(PAUSE, changed).cause == "blocked_pipe"


@pytest.mark.parametrize("patience", [50.0, 3.0])
def test_a_wait_whose_own_limit_is_near_is_not_hung_before_it(patience: float) -> None:
    """The end of the program waits for a flusher. It has lasted 54 s and ends in 4 s, whatever the hang timeout is."""
    recording, at = load_case(FLUSHER), expected_of(FLUSHER).at
    conditions = {**recording.session.conditions, "patience_seconds": patience}
    recording = replace(recording, session=msgspec.structs.replace(recording.session, conditions=conditions))

    verdict = diagnose(recording, at)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert 0.0 < verdict.suspect.decides_in_seconds < 6.0


@pytest.mark.parametrize(("left", "state"), [(30.0, "inconclusive"), (None, "hung")])
def test_a_servant_that_sleeps_for_an_hour_is_not_waited_for_beside_one_that_wakes_before(
    left: float | None, state: str
) -> None:
    """Which of them brings the next request is not known; one that waits for the request's answer brings none."""
    history, until = job(1), STOPPED + 60.0
    stands(history, FIRST, ASKS, PARKED, until)
    stands(history, FIRST, ROTATES, Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=3600.0),
           until, tid=FIRST + 1000)  # fmt: skip
    rests = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=left)
    stands(history, FIRST, CLIENT, PARKED if left is None else rests, until, tid=FIRST + 1001)

    assert judged(history, STOPPED + 20.0).state == state


@pytest.mark.parametrize("call", ["pause", "rt_sigtimedwait", "rt_sigsuspend"])
def test_a_wait_for_a_signal_is_told_with_medium_confidence(call: str) -> None:
    """Any process may send it."""
    history, until = job(1), STOPPED + 70.0
    stands(history, FIRST, LOGS, Wait(call=call, number=34, kind="other", forever=True), until)
    verdict = judged(history, until)

    assert (verdict.state, verdict.confidence) == ("hung", 0.65)
    assert "unless a process that sends the signal releases it" in verdict.summary
