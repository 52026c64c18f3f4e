"""Observers from outside: they end at the deadline, they die with us, and their failures are answers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfwatch_probes.external import MOST_AT_ONCE, reap, run_together, start
from perfwatch_probes.probe import Unavailable

pytestmark = pytest.mark.live

GENEROUS_SECONDS = 20.0


def test_output_errors_exit_code_and_cost_of_each_come_back_in_order() -> None:
    """Six commands, four at a time, are answered in the order in which they were asked."""
    commands = [["/bin/sh", "-c", f"echo out{number}; echo err{number} >&2; exit {number}"] for number in range(6)]

    finished = run_together(commands, GENEROUS_SECONDS)

    assert len(commands) > MOST_AT_ONCE
    assert [one.returncode for one in finished] == list(range(6))
    assert [one.output for one in finished] == [f"out{number}\n".encode() for number in range(6)]
    assert [one.errors for one in finished] == [f"err{number}\n" for number in range(6)]
    assert all(one.cpu_seconds > 0 for one in finished)


def test_one_that_hangs_is_killed_at_the_deadline_of_the_whole_batch() -> None:
    """The caller is held for the deadline, once, and learns which command was late and which never started."""
    began = time.monotonic()

    finished = run_together([["/bin/sleep", "60"]] * MOST_AT_ONCE + [["/bin/true"]], deadline_seconds=0.3)

    assert time.monotonic() - began < 10.0
    assert [one.returncode for one in finished] == [None] * 5
    assert [one.started for one in finished] == [True] * 4 + [False]


@pytest.mark.parametrize(
    "script", ["/bin/sleep 600; exit 1", "/bin/sleep 600 & exit 0"], ids=["hangs", "leaves it behind"]
)
def test_what_an_observer_has_started_goes_with_it(tmp_path: Path, script: str) -> None:
    """A script around py-spy may hang in a process of its own, or end before that."""
    os.mkfifo(tmp_path / "alive")  # at its end when the last of them is gone
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    run_together([["/bin/sh", "-c", f"exec 3> {tmp_path}/alive; echo >&3; {script}"]], deadline_seconds=0.3)

    assert os.read(alive, 1) == b"\n"
    assert _ends(alive)


def test_one_that_cannot_be_started_does_not_spoil_the_others() -> None:
    """A missing program is reported as such (127), and the rest are answered."""
    missing, there = run_together([["/nowhere/py-spy"], ["/bin/true"]], GENEROUS_SECONDS)

    assert missing.returncode == 127
    assert "/nowhere/py-spy could not be started" in missing.errors
    assert there.returncode == 0


def test_where_none_can_be_started_the_deadline_is_not_waited_for() -> None:
    """Nothing will ever answer."""
    began = time.monotonic()

    finished = run_together([["/nowhere/py-spy"]] * (MOST_AT_ONCE + 1), GENEROUS_SECONDS)

    assert time.monotonic() - began < GENEROUS_SECONDS / 2
    assert [one.returncode for one in finished] == [127] * (MOST_AT_ONCE + 1)


def test_starting_a_missing_program_is_unavailable() -> None:
    """It is a state of the world, not an error of ours."""
    with pytest.raises(Unavailable, match="could not be started"):
        start(["/nowhere/perf"])


def test_an_observer_dies_with_us() -> None:
    """When the watcher is killed, the kernel kills its observers: nothing of ours outlives us."""
    source = (
        "from perfwatch_probes.external import start; import sys, time;"
        "print(start(['/bin/sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    watcher = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    observer = int(watcher.stdout.readline())
    handle = os.pidfd_open(observer)

    watcher.kill()
    watcher.communicate()

    assert _ends(handle)


def test_an_observer_has_no_terminal_and_no_standard_input() -> None:
    """Ctrl-C on the terminal does not reach it, and it cannot steal what the user types."""
    [finished] = run_together([["/bin/sh", "-c", "readlink /proc/self/fd/0; cat /proc/$$/stat"]], GENEROUS_SECONDS)

    stdin, stat = finished.output.decode().splitlines()
    session = int(stat.rpartition(")")[2].split()[3])
    assert stdin == "/dev/null"
    assert session != os.getsid(0)


def test_a_running_child_has_no_cost_yet(tmp_path: Path) -> None:
    """``reap`` answers None while the child runs, and its CPU seconds once it has ended."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = start(["/bin/cat", str(gate)])

    assert reap(child, 0.0) is None
    gate.write_text("go")

    assert (reap(child, GENEROUS_SECONDS) or 0.0) > 0.0
    child.communicate()


def _ends(handle: int) -> bool:
    import select

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    try:
        return bool(poll.poll(GENEROUS_SECONDS * 1000))
    finally:
        os.close(handle)
