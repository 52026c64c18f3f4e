"""Handles on the processes of others: when one ends is known at once, and how even after it was reaped."""

import os
import platform
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from perfwatch.watching.process_tree import Family
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.endings import Endings
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests

pytestmark = pytest.mark.live

TOLD_AFTER_REAPING = (6, 15)  # of Linux: PIDFD_INFO_EXIT
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(int(sys.stdin.readline()))"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
for line in sys.stdin:
    if line != "kill\\n":
        child.stdin.write(line.encode())
        child.stdin.flush()
    child.wait()
    print("reaped", flush=True)
"""
newest_kernels = pytest.mark.skipif(
    tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < TOLD_AFTER_REAPING,
    reason="this kernel does not tell how a process ended once it was reaped",
)


class Household:
    """A process, and the child that it reaps as soon as it ends: neither is ours to wait for."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        assert parent.stdout is not None
        self._parent = parent
        self.child = int(parent.stdout.readline())

    def child_exits(self, code: int) -> None:
        """Returns when the child was reaped."""
        self._say(str(code))

    def child_is_killed(self) -> None:
        """Returns when the child was reaped."""
        os.kill(self.child, signal.SIGKILL)
        self._say("kill")

    def _say(self, word: str) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{word}\n")
        self._parent.stdin.flush()
        assert self._parent.stdout.readline() == "reaped\n"


@pytest.fixture
def household() -> Iterator[Household]:
    """Somebody else's child."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        yield Household(parent)
        parent.communicate()


@pytest.fixture
def endings() -> Iterator[Endings]:
    """Holds nobody yet."""
    one = Endings()
    yield one
    one.close()


def readable(endings: Endings, seconds: float) -> bool:
    """Whether somebody who waits for it would be woken."""
    return bool(select.select([endings], [], [], seconds)[0])


@newest_kernels
def test_exit_code_after_reaping(household: Household, endings: Endings) -> None:
    """How a process ended that is another's child is known even after that one has reaped it."""
    endings.hold(household.child)
    household.child_exits(7)
    status = endings.release(household.child)
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == 7


@newest_kernels
def test_job_that_its_parent_reaps_at_once(household: Household, endings: Endings) -> None:
    """A job that was attached to and killed was killed by SIGKILL, however soon its parent reaps it."""
    child = KillableChild()
    family = Family(Filesystem(), child, Guests(), lambda: 0.0, endings)
    family.follow([household.child])
    household.child_is_killed()
    gone = family.ended()
    child.close()
    assert [(one.pid, one.zombie, one.signal, one.exit_code) for one in gone] == [
        (household.child, False, signal.SIGKILL, None)
    ]


def test_end_wakes_once(household: Household, endings: Endings) -> None:
    """An end wakes who waits for it, and is told once."""
    endings.hold(household.child)
    assert not readable(endings, 0.0)
    household.child_exits(0)
    assert readable(endings, 10.0)
    assert endings.news()
    assert not readable(endings, 0.0)
    assert not endings.news()


def test_nothing_of_the_living(household: Household, endings: Endings) -> None:
    """Of a process that lives, or that nobody holds, nothing is told."""
    endings.hold(household.child)
    assert endings.release(household.child) is None
    assert endings.release(household.child) is None


def test_more_processes_than_handles(household: Household) -> None:
    """Processes for which there is no handle any more are left to /proc."""
    few = Endings(most=1)
    few.hold(os.getpid())
    few.hold(household.child)
    household.child_exits(0)
    assert not readable(few, 0.2)
    assert few.release(household.child) is None
    few.close()


def test_files_are_left_for_the_other_probes(household: Household) -> None:
    """A program that watches many jobs takes half of the files that it may have open for handles, and no more."""
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * lowest, hard))  # one half is open already
    one = Endings()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    one.hold(household.child)
    household.child_exits(0)
    assert not readable(one, 0.2)
    one.close()


def test_no_such_process(endings: Endings) -> None:
    """A process that is not there is nobody to hold."""
    endings.hold(2**22 + 1)  # above what the kernel gives out (pid_max, 64 bits)
    assert endings.release(2**22 + 1) is None


def test_reaping_is_left_to_the_parent(household: Household, endings: Endings) -> None:
    """A process with a handle on it is reaped by its parent as any other, and is gone then."""
    endings.hold(household.child)
    household.child_exits(0)  # its parent's wait() returned
    with pytest.raises(ProcessLookupError):
        os.kill(household.child, 0)


def test_files_are_given_back() -> None:
    """Closing leaves no file open."""
    before = len(os.listdir("/proc/self/fd"))
    one = Endings()
    one.hold(os.getpid())
    one.close()
    assert len(os.listdir("/proc/self/fd")) == before
