"""Threads: what a recorded process shows, what its missing files leave unknown, and what living threads wait for."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfwatch_probes.cpu_clock import CpuClocks
from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Thread
from perfwatch_probes.thread import one_thread, sweep, threads
from perfwatch_probes.waits import decode_all

LIVE = Filesystem()
Start = Callable[[str], int]
Wake = Callable[[int], None]
Until = Callable[[Callable[[], bool]], None]

BLOCKED = """
import os, select, socket, subprocess, threading, time
readable, writable = os.pipe()
here, there = socket.socketpair()
lock = threading.Lock(); lock.acquire()
watched = select.epoll(); watched.register(readable, 1)
polled = select.poll(); polled.register(there, 1)
for wait in (
    lambda: os.read(readable, 1), lambda: here.recv(1), lock.acquire, lambda: lock.acquire(timeout=500),
    lambda: select.select([readable], [], [], 300), lambda: polled.poll(200000), lambda: watched.poll(100),
    lambda: os.open(PATH, os.O_RDONLY),
):
    threading.Thread(target=wait, daemon=True).start()
print('ready', flush=True)
time.sleep(1000)
"""


@pytest.fixture
def copied(recorded: Filesystem, tmp_path: Path) -> Filesystem:
    """The recorded machine, to be damaged."""
    shutil.copytree(recorded.proc / "4100", tmp_path / "4100", symlinks=True)
    return Filesystem(proc=tmp_path)


def test_cheap_sweep_reads_state_and_time(recorded: Filesystem) -> None:
    """The cheap sweep knows state and CPU time of each thread and claims nothing else."""
    found = threads(recorded, 4100)

    assert [one.tid for one in found] == [4100, 4101, 4102]
    assert found[0] == Thread(pid=4100, tid=4100, name="python", state="S", cpu_seconds=0.02, block_delay_seconds=0.0)


def test_full_sweep_of_a_recorded_process(recorded: Filesystem) -> None:
    """The full sweep adds switches, time, io and the wait of each thread."""
    main, reader, locker = threads(recorded, 4100, full=True, child=Inline())

    assert main.wait is not None
    assert main.wait.kind == "sleep"
    assert main.wait.remaining_seconds is None  # a recording has no memory
    assert reader.wait is not None
    assert (reader.wait.kind, reader.wait.fd, reader.wchan) == ("read", 3, "anon_pipe_read")
    assert locker.wait is not None
    assert (locker.wait.kind, locker.wait.forever, locker.wchan) == ("futex", True, "futex_do_wait")
    assert (locker.voluntary_switches, locker.involuntary_switches) == (1, 8)
    assert main.written_chars == 6
    assert main.run_seconds is not None
    assert main.ran_ago_seconds is None  # nobody to compare clocks with


def test_last_run_is_measured_on_its_own_cpu(recorded: Filesystem) -> None:
    """exec_start is on the clock of the CPU on which the thread last ran."""
    (raw,) = sweep(recorded, 4100, [4102])
    assert raw.exec_start is not None
    offset = raw.at - raw.exec_start - 42.0
    clocks = CpuClocks(Inline(), lambda cpus: {raw.stat.processor: offset})

    found = one_thread(recorded, 4100, 4102, Inline(), clocks)
    other_cpu = one_thread(
        recorded, 4100, 4102, Inline(), CpuClocks(Inline(), lambda cpus: {raw.stat.processor + 1: offset})
    )

    assert found.ran_ago_seconds == pytest.approx(42.0, abs=5.0)
    assert other_cpu.ran_ago_seconds is None


def test_runnable_thread_runs_now(copied: Filesystem) -> None:
    """A thread in state R ran zero seconds ago and waits for nothing."""
    stat = copied.proc / "4100" / "task" / "4101" / "stat"
    stat.write_text(stat.read_text().replace(") S ", ") R "))
    found = threads(copied, 4100, full=True, child=Inline())

    assert (found[1].ran_ago_seconds, found[1].wait) == (0.0, None)


@pytest.mark.parametrize("wchan", ["futex_wait_queue", "futex_do_wait", "futex_wait_queue_me"])
def test_wait_channel_is_shown_as_the_kernel_names_it(copied: Filesystem, wchan: str) -> None:
    """Kernels name the same wait differently: the name is shown, the decision rests on the call."""
    (copied.proc / "4100" / "task" / "4102" / "wchan").write_text(wchan)
    found = one_thread(copied, 4100, 4102, Inline())

    assert found.wchan == wchan
    assert found.wait is not None
    assert found.wait.kind == "futex"


@pytest.mark.parametrize("wchan", ["", "0"])
def test_hidden_wait_channel_is_unknown(copied: Filesystem, wchan: str) -> None:
    """0 is what a running thread shows, and what everybody sees who may not look."""
    (copied.proc / "4100" / "task" / "4102" / "wchan").write_text(wchan)

    assert one_thread(copied, 4100, 4102, Inline()).wchan is None


def test_denied_files_are_unknown(copied: Filesystem) -> None:
    """Another user's thread shows its state and its switches; the rest is unknown, not zero."""
    for name in ("syscall", "io", "wchan", "sched", "schedstat"):
        (copied.proc / "4100" / "task" / "4102" / name).unlink()
    found = one_thread(copied, 4100, 4102, Inline())

    assert (found.state, found.voluntary_switches) == ("S", 1)
    assert (found.wait, found.wchan, found.read_chars, found.run_seconds, found.ran_ago_seconds) == (None,) * 5


@pytest.mark.parametrize("name", ["stat", "io", "schedstat", "syscall", "status"])
def test_file_that_empties_during_the_read(copied: Filesystem, name: str) -> None:
    """Files go empty when a thread ends: without a stat it is left out, otherwise the rest stands."""
    (copied.proc / "4100" / "task" / "4101" / name).write_text("")
    found = threads(copied, 4100, full=True, child=Inline())

    assert [one.tid for one in found] == ([4100, 4102] if name == "stat" else [4100, 4101, 4102])


def test_ended_process_and_thread_are_unavailable(recorded: Filesystem) -> None:
    """A process or thread that is gone is not an empty answer."""
    with pytest.raises(Absent):
        threads(recorded, 4199)
    with pytest.raises(Absent):
        threads(recorded, 4199, full=True, child=Inline(), tids=[4199])
    with pytest.raises(Unavailable, match="has ended"):
        one_thread(recorded, 4100, 4199, Inline())


def test_held_memory_lock_costs_only_what_is_behind_pointers(recorded: Filesystem) -> None:
    """When memory cannot be read in time, descriptors and locks are still named."""
    calls = {
        raw.stat.pid: (raw.syscall, raw.stat.state, raw.wchan, None) for raw in sweep(recorded, 4100, [4101, 4102])
    }

    class Stuck(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            if function is decode_all:
                raise Unavailable("late")
            return function(*arguments)

    found = threads(recorded, 4100, full=True, child=Stuck(), tids=calls)

    assert [one.wait.kind for one in found if one.wait] == ["read", "futex"]


@pytest.mark.live
def test_living_threads_and_what_they_wait_for(
    start: Start, until: Until, child: KillableChild, tmp_path: Path
) -> None:
    """Eight ways to be blocked, told apart on a living process without stopping it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid = start(f"PATH = {os.fspath(fifo)!r}\n{BLOCKED}")

    def look() -> list[Thread]:
        return threads(LIVE, pid, full=True, child=child, clocks=CpuClocks(child))

    until(lambda: sum(one.wait is not None for one in look()) == 9)
    found = {(one.wait.kind, one.wait.call): one for one in look() if one.wait}
    waits = {kind: one.wait for (kind, _), one in found.items() if one.wait}
    remaining = {kind: wait.remaining_seconds for kind, wait in waits.items()}

    assert set(waits) == {"sleep", "read", "recv", "futex", "poll", "open"}
    assert waits["open"].path == os.fspath(fifo)
    assert waits["read"].forever
    assert waits["recv"].forever
    assert remaining["sleep"] is not None
    assert 900 < remaining["sleep"] <= 1000
    polls = [one.wait for one in look() if one.wait and one.wait.kind == "poll"]
    assert all(wait.polled or wait.fd is not None for wait in polls)
    assert sorted(round(wait.remaining_seconds or 0, -2) for wait in polls) == [100, 200, 300]
    futexes = [one.wait for one in look() if one.wait and one.wait.kind == "futex"]
    assert sorted(wait.forever for wait in futexes) == [False, True]
    assert all(one.ran_ago_seconds is None or one.ran_ago_seconds < 60 for one in found.values())
    assert not any(one.state in "tT" for one in look())


@pytest.mark.live
def test_living_process_that_ends(start: Start, wake: Wake, child: KillableChild, until: Until) -> None:
    """A process that ends between two looks is unavailable, never an error."""
    pid = start("print('ready', flush=True)\nimport sys\nsys.stdin.readline()")
    assert threads(LIVE, pid, full=True, child=child)

    wake(pid)

    until(lambda: not [one for one in threads(LIVE, pid, full=True, child=child) if one.state != "Z"])
