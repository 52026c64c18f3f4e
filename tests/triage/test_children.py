"""Child processes: what a parent waits for, and whether the child is at work."""

import pytest
from msgspec.structs import replace

from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Frame, ProcessEnded, ProcessUsage, Socket, Wait
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


def test_a_program_that_sleeps_until_a_time_that_is_known_is_no_hang() -> None:
    """``subprocess.run(["sleep", "200"])``, whatever the patience: a cool-down, a window, a round of others."""
    history = job(1)
    history.add(STOPPED, process(SCRIPT, FIRST, "sleep 200"))
    stands(
        history,
        FIRST,
        CHILD_AT_REST_WAITS,
        Wait(call="wait4", number=61, kind="child", forever=True, child_pid=SCRIPT),
        CHILD_AT_REST_UNTIL,
    )
    rest = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=200.0)
    stands(history, SCRIPT, (), rest, CHILD_AT_REST_UNTIL)
    for at in looks(STOPPED, CHILD_AT_REST_UNTIL):
        history.add(at, ProcessUsage(pid=SCRIPT, state="S", threads=1, cpu_seconds=0.001, children_cpu_seconds=0.0,
                                     major_faults=0, minor_faults=0, resident_bytes=2**20, read_chars=0, written_chars=0))  # fmt: skip

    for seconds in (30.0, 130.0):
        said = judged(history, STOPPED + seconds)

        assert (said.state, said.cause) == ("busy", "waiting_on_work")
        assert "wakes in" in said.summary


# Numbers of processes are used again: what a reading names as a parent need not be one.


def test_a_parent_that_is_younger_than_its_child_is_none() -> None:
    """The number of a parent that has ended was used again, by a descendant even: nobody goes round in a circle."""
    history = History()
    history.add(0.0, process(FIRST, FIRST + 1, "python train.py"))
    history.add(0.0, process(FIRST + 1, FIRST, "sleep 10"))
    runs(history, FIRST, STEP, BEGAN, STOPPED)

    assert judged(history, STOPPED).state == "healthy"
