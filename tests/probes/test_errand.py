"""An errand: an answer, a refusal, a deadline, a death; and nothing left behind."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.errand import Errand
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Reading, StackFailure

pytestmark = pytest.mark.live


def wait(
    ask: Callable[[], Iterable[Reading]], deadline_seconds: float = 20.0, memory: int | None = None
) -> list[Reading]:
    """Send it off and look until it is over."""
    errand = Errand(ask, deadline_seconds, memory)
    while (found := errand.poll()) is None:
        time.sleep(0.005)
    return found


def refuse(error: Exception) -> list[Reading]:
    """A question that cannot be answered."""
    raise error


def test_readings_come_back_and_the_cost_is_known() -> None:
    """As they were made."""
    errand = Errand(lambda: [StackFailure(pid=3, message="moved")], 20.0)
    while (found := errand.poll()) is None:
        time.sleep(0.005)

    assert found == [StackFailure(pid=3, message="moved")]
    assert errand.cpu_seconds > 0.0


def burn() -> int:
    """A tenth of a second of CPU time."""
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass
    return 3


def ask_a_child() -> list[Reading]:
    """The answer of a child's child, which is thrown away."""
    child = KillableChild()
    pid = child.call(burn, deadline_seconds=20.0)
    child.close()
    return [StackFailure(pid=pid, message="moved")]


def test_what_a_child_of_it_has_cost_is_known() -> None:
    """It is collected before the errand ends."""
    errand = Errand(ask_a_child, 20.0)
    while errand.poll() is None:
        time.sleep(0.005)

    assert errand.cpu_seconds >= 0.1


def test_a_refusal_comes_back_with_its_advice() -> None:
    """Absent stays absent."""
    with pytest.raises(Unavailable, match="dark") as raised:
        wait(lambda: refuse(Unavailable("it is dark", "make light")))
    assert raised.value.advice == "make light"
    with pytest.raises(Absent):
        wait(lambda: refuse(Absent("there is none")))


def test_what_cannot_be_sent_is_told() -> None:
    """One reading that no recording can hold is a reason, not a death."""
    with pytest.raises(Unavailable, match="Error"):
        wait(lambda: [StackFailure(pid=2**70, message="beyond 64 bits")])
    with pytest.raises(Unavailable, match="ud800"):
        wait(lambda: refuse(ValueError("\ud800")))


def test_what_is_late_is_thrown_away() -> None:
    """At its deadline, not later, and the process is gone."""
    children = set(os.listdir("/proc"))
    began = time.monotonic()

    with pytest.raises(Unavailable, match=r"within 0\.2 s"):
        wait(lambda: [time.sleep(60)], 0.2)  # type: ignore[list-item, func-returns-value]
    assert time.monotonic() - began < 5.0
    ends = time.monotonic() + 5.0
    while [pid for pid in set(os.listdir("/proc")) - children if pid.isdigit() and _is_child(int(pid))]:
        assert time.monotonic() < ends


def _is_child(pid: int) -> bool:
    """Alive: one that has just been killed may take a moment to go, and is reaped by the next errand."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return False
    return int(parent) == os.getpid() and state not in "ZX"


def test_a_death_is_told() -> None:
    """A parser that crashes takes nothing with it."""
    with pytest.raises(Unavailable, match="has died"):
        wait(lambda: [os.kill(os.getpid(), 9)])  # type: ignore[list-item, func-returns-value]


def test_memory_is_limited() -> None:
    """What a hostile file would take is refused by the kernel."""
    with pytest.raises(Unavailable, match="memory"):
        wait(lambda: [bytearray(2**31)], memory=2**26)  # type: ignore[list-item]


@pytest.mark.skipif(os.getuid() != 0, reason="a user reads the files of its own processes itself")
def test_a_reader_that_was_killed_costs_no_read() -> None:
    """It is the first to go where memory runs out; its successor reads."""
    filesystem = Filesystem()
    first = filesystem.read_text("/proc/1/stat")
    own = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children"
    readers = [int(pid) for pid in Path(own).read_text().split()]
    for pid in readers:
        if Path(f"/proc/{pid}/comm").read_text() == "perfwatch-read\n":
            handle = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([handle], [], [], 20.0)
            os.close(handle)

    assert first.startswith("1 (")
    assert filesystem.read_text("/proc/1/stat").startswith("1 (")
