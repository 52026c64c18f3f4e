"""The killable child: answers, refusals, deadlines, and what it leaves behind."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.probe import Unavailable

pytestmark = pytest.mark.live


def add(one: int, other: int) -> int:
    """A call that answers."""
    return one + other


def refuse() -> None:
    """A call that cannot see."""
    raise Unavailable("it is dark", "make light")


def block_for_ever() -> None:
    """A call that never comes back: it reads a pipe whose writing end it holds itself."""
    readable, _ = os.pipe()
    os.read(readable, 1)


def die() -> None:
    """A reader that is killed, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_unpicklable() -> None:
    """An error that cannot travel."""
    raise ValueError(lambda: None)


def interrupt_parent_and_answer() -> str:
    """A user who loses patience just before the answer comes."""
    parent = os.getppid()
    os.kill(parent, signal.SIGUSR1)
    return "late"


def echo(data: bytes) -> bytes:
    """The same bytes."""
    return data


def standing() -> tuple[list[str], str, int, bool]:
    """(targets of open files, oom_score_adj, session, whether SIGTERM is blocked or ignored)."""
    targets = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name)]
    ignored = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    ignored |= signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    return targets, Path("/proc/self/oom_score_adj").read_text(), os.getsid(0), ignored


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def _is_gone(pid: int) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_answers_come_back(child: KillableChild) -> None:
    """A result travels, and the same child serves the next call."""
    first = child.call(os.getpid, deadline_seconds=10)

    assert child.call(add, 2, 3, deadline_seconds=10) == 5
    assert child.call(os.getpid, deadline_seconds=10) == first != os.getpid()


def test_large_data_travels_both_ways(child: KillableChild) -> None:
    """A message larger than a pipe's buffer arrives whole."""
    data = bytes(range(256)) * 4096

    assert child.call(echo, data, deadline_seconds=10) == data


def test_unavailable_travels_with_its_advice(child: KillableChild) -> None:
    """What the reader cannot see is said with reason and advice, as if it had been read here."""
    with pytest.raises(Unavailable, match="it is dark") as caught:
        child.call(refuse, deadline_seconds=10)

    assert caught.value.advice == "make light"


def test_errors_that_cannot_travel_are_described(child: KillableChild) -> None:
    """An exception that cannot be pickled arrives in words, and the child lives on."""
    with pytest.raises(RuntimeError, match="ValueError"):
        child.call(raise_unpicklable, deadline_seconds=10)

    assert child.call(add, 1, 1, deadline_seconds=10) == 2


def test_late_call_is_given_up(child: KillableChild) -> None:
    """A call that never returns costs its deadline and no more, and names itself."""
    child.call(add, 1, 1, deadline_seconds=10)
    began = time.monotonic()

    with pytest.raises(Unavailable, match=r"block_for_ever did not answer within 0\.1 s"):
        child.call(block_for_ever, deadline_seconds=0.1)

    assert time.monotonic() - began < 5


def test_late_child_is_killed_and_replaced(child: KillableChild, until: Callable[[Callable[[], bool]], None]) -> None:
    """After a late call the next one is served by a new process, and the old one is gone."""
    first = child.call(os.getpid, deadline_seconds=10)
    with pytest.raises(Unavailable):
        child.call(block_for_ever, deadline_seconds=0.1)

    assert child.call(os.getpid, deadline_seconds=10) != first
    until(lambda: _is_gone(first))


def test_killed_reader_is_unavailable_and_replaced(child: KillableChild) -> None:
    """A reader that the kernel kills is a missing witness, not a crash of the watcher."""
    with pytest.raises(Unavailable, match="died during die"):
        child.call(die, deadline_seconds=10)

    assert child.call(add, 1, 1, deadline_seconds=10) == 2


def test_interrupted_call_leaves_no_answer_behind(child: KillableChild) -> None:
    """After Ctrl-C in the middle of a call, the next call gets its own answer and not the late one."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            child.call(interrupt_parent_and_answer, deadline_seconds=10)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert child.call(add, 2, 3, deadline_seconds=10) == 5


def test_stuck_readers_are_bounded() -> None:
    """When as many readers as we can afford are held by the kernel, no further one is sent after them."""
    child = KillableChild(most_abandoned=0)

    with pytest.raises(Unavailable, match="stuck in the kernel"):
        child.call(add, 1, 1, deadline_seconds=10)


def test_child_keeps_nothing_of_ours(child: KillableChild, tmp_path: Path) -> None:
    """The child holds none of our files, is first in line when memory runs out, and is out of the terminal's reach."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with (tmp_path / "open").open("w") as ours:
            targets, score, session, ignored = child.call(standing, deadline_seconds=10)
            assert ours.name not in targets
    finally:
        signal.signal(signal.SIGTERM, before)

    assert targets.count("/dev/null") == 3
    assert all(target == "/dev/null" or target.startswith("pipe:") for target in targets)
    assert score == "1000\n"
    assert session != os.getsid(0)
    assert not ignored


def test_child_dies_with_its_parent(start: Callable[[str], int], until: Callable[[Callable[[], bool]], None]) -> None:
    """When the watcher is killed with SIGKILL, its reader is gone too, even in the middle of a call."""
    watcher = start(
        "import os, threading, time\n"
        "from perfwatch_probes.deadline import KillableChild\n"
        "child = KillableChild()\n"
        "child.call(os.getpid, deadline_seconds=10)\n"
        "print('ready', flush=True)\n"
        "child.call(time.sleep, 600, deadline_seconds=600)\n"
    )
    children = Path(f"/proc/{watcher}/task/{watcher}/children")
    reader = int(children.read_text())
    until(lambda: "nanosleep" in Path(f"/proc/{reader}/wchan").read_text())

    os.kill(watcher, signal.SIGKILL)

    until(lambda: _is_gone(reader))


def test_inline_calls_here() -> None:
    """Where nothing can block, the same interface runs the call in this process."""
    assert Inline().call(os.getpid, deadline_seconds=1) == os.getpid()
