"""An event loop that awaits a child hears of its end by a pidfd or by a signal: who brings that about is the child."""

import pytest

from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Frame, Socket, Wait
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
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
