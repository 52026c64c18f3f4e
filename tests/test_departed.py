"""Threads that were seen and are no more."""

from pathlib import Path

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.watching.departed import departed
from perfwatch_probes.readings import Frame, Stack, Thread
from tests.machines import FakeMachine

PID, PRODUCER, NATIVE = 40, 41, 42
STACK = Stack(pid=PID, tid=PRODUCER, thread="reader", frames=(Frame("read", "/app/train.py", 3),))


def seen(*readings: Stack | Thread) -> History:
    """What was read of one process with a main thread."""
    history = History(at=9.0)
    for reading in (Stack(pid=PID, tid=PID, frames=(Frame("main", "/app/train.py", 9),)), *readings):
        history.add(5.0, reading)
    return history


def test_a_python_thread_that_is_not_listed_any_more_has_ended(tmp_path: Path) -> None:
    """It is said once, with what it had used."""
    machine = FakeMachine(tmp_path)
    machine.process(PID, parent=1)
    history = seen(STACK, Thread(pid=PID, tid=PRODUCER, name="reader", state="S", cpu_seconds=2.5))

    (gone,) = departed(history, machine.filesystem, [PID])
    history.add(9.0, gone)

    assert (gone.tid, gone.name, gone.state, gone.cpu_seconds) == (PRODUCER, "reader", "X", 2.5)
    assert python_threads(history, PID) == [PID]
    assert departed(history, machine.filesystem, [PID]) == []


def test_one_that_only_its_stack_was_read_of_is_told_by_name(tmp_path: Path) -> None:
    """A calm job's threads are not looked at one by one."""
    machine = FakeMachine(tmp_path)
    machine.process(PID, parent=1)

    (gone,) = departed(seen(STACK), machine.filesystem, [PID])

    assert (gone.tid, gone.name, gone.state) == (PRODUCER, "reader", "X")


def test_threads_without_python_and_those_of_a_process_that_is_gone_are_not_told(tmp_path: Path) -> None:
    """Native ones come and go; of a process its end is told."""
    machine = FakeMachine(tmp_path)
    native = Thread(pid=PID, tid=NATIVE, name="cuda", state="S", cpu_seconds=1.0)
    assert departed(seen(STACK), machine.filesystem, [PID]) == []

    machine.process(PID, parent=1)
    assert departed(seen(native), machine.filesystem, [PID]) == []
