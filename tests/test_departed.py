"""Threads that were seen and are no more."""

from pathlib import Path

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.watching.departed import departed
from perfwatch_probes.readings import Frame, Process, Stack, Thread, Wait
from tests.machines import FakeMachine
from tests.sessions import session

PID, PRODUCER, NATIVE = 40, 41, 42
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
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
    assert departed(history, machine.filesystem, [PID]) == []


def test_a_thread_that_has_ended_is_told_and_lets_nobody_go_on(tmp_path: Path) -> None:
    """The main thread waits for a lock: while the reader is there it may release it, and then nobody is left who could."""
    machine = FakeMachine(tmp_path)
    machine.process(PID, parent=1)
    reads = Wait(call="read", number=0, kind="read", fd=3, forever=True)

    def waits(reader_until: int) -> History:
        history = History(at=30.0)
        history.add(0.0, Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
        for second in range(1, 31):
            at = float(second)
            for tid, name, wait, line in ((PID, "python", LOCK, 9), (PRODUCER, "reader", reads, 3)):
                if tid == PID or second < reader_until:
                    history.add(at, Thread(pid=PID, tid=tid, name=name, state="S", cpu_seconds=1.0, run_seconds=1.0,
                                           ran_ago_seconds=at, wait=wait))  # fmt: skip
                    frames = (Frame("main", "/app/train.py", line),)
                    history.add(at, Stack(pid=PID, tid=tid, thread=name, frames=frames, samples=5, span_seconds=0.9))
        return history

    there, ended = waits(31), waits(5)
    for gone in departed(ended, machine.filesystem, [PID]):
        ended.add(6.0, gone)
    before, after = (judge(Case(history, session(root_pids=(PID,)))) for history in (there, ended))

    assert before.state == "inconclusive"
    assert (after.state, after.cause) == ("hung", "deadlocked_locks")
    assert "thread reader, last seen at main (train.py:3), has ended" in after.summary


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
