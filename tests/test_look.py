"""What one look at a process covers, and what counts as a look at its stacks."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfwatch.triage.history import History
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.thread_choice import MOST_THREADS
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import ProbeCall, Process, Reading
from tests.limits import open_files

PROGRAM = f"""
import ctypes, sys, threading
libc = ctypes.CDLL(None)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
for _ in range({MOST_THREADS} + 16):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, pause, None)
late = threading.Thread(target=sys.stdin.read, daemon=True)
late.start()
print(late.native_id, flush=True)
late.join()
"""


@pytest.mark.live
def test_a_python_thread_that_began_after_a_hundred_native_ones_is_looked_at() -> None:
    """Torch's pools have a thread for each core, and a program's own threads begin after them."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        late = int(program.stdout.readline())
        look = Look(sink=lambda _: None)
        look.processes([program.pid])
        look.dump([program.pid])
        seen = [thread.tid for thread in look.threads(program.pid)]
        look.close()
        program.communicate(b"")

    assert late in seen
    assert len(seen) == MOST_THREADS


@pytest.mark.live
@pytest.mark.parametrize(
    ("py_spy", "dumps"),
    [("echo garbage", 0), ("echo Permission denied >&2; exit 1", 0), ("echo Failed to copy frame >&2; exit 1", 1)],
    ids=["garbage", "denied", "it moved"],
)
def test_only_stacks_that_were_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: str, dumps: int
) -> None:
    """A py-spy that fails costs, but nobody's stack was dumped."""
    script = tmp_path / "py-spy"
    script.write_text(f"#!/bin/sh\n{py_spy}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PERFWATCH_PY_SPY", str(script))
    history = History()

    def sink(readings: Sequence[Reading]) -> None:
        for reading in readings:
            history.add(0.0, reading)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        look = Look(sink)
        look.processes([program.pid])
        look.dump([program.pid])
        look.record(program.pid, 1.0)
        while look.records:
            look.collect()
        look.close()
        program.communicate(b"\n")

    assert history.spent.stack_dumps == dumps


def test_a_look_that_is_over_has_let_go_of_the_kernels_log() -> None:
    """A daemon looks at one job after the other."""
    before = open_files()
    look = Look(sink=lambda _: None)
    look.kernel_log()
    opened = open_files()
    look.close()

    if "/dev/kmsg" not in opened.values():
        pytest.skip("the kernel's log may not be read here")
    assert open_files() == before


def raises(kind: type[Exception]) -> list[Reading]:
    """A probe."""
    raise kind("not as thought")


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        (Unavailable, "unavailable", "not as thought"),
        (ValueError, "failed", "ValueError: not as thought"),
        (RuntimeError, "failed", "RuntimeError: not as thought"),
        (KeyError, "failed", "KeyError: 'not as thought'"),
    ],
)
def test_whatever_a_probe_raises_is_a_look_that_brought_nothing(
    kind: type[Exception], outcome: str, reason: str
) -> None:
    """It is recorded when it is new, and the round goes on to the next probe."""
    said: list[Reading] = []
    look = Look(said.extend)
    found = [look.take("host", "host", lambda: raises(kind)) for _ in range(2)]
    look.close()

    assert found == [[], []]
    assert [(one.outcome, one.reason) for one in said if isinstance(one, ProbeCall)] == [(outcome, reason)]


class Broken:
    """A sample of stacks that cannot be read."""

    pid, cpu_seconds = 7, 0.0

    def poll(self) -> list[tuple[float, Reading]] | None:
        """Whether it is there."""
        raise RuntimeError("not as thought")


def test_a_sample_that_cannot_be_read_is_a_look_that_brought_nothing() -> None:
    """The round goes on, and the next one does not ask for it again."""
    said: list[Reading] = []
    look = Look(said.extend)
    look.records.append(Broken())  # type: ignore[arg-type]
    found = look.collect()
    look.close()

    assert (found, look.records) == ([], [])
    assert [one.reason for one in said if isinstance(one, ProbeCall)] == ["RuntimeError: not as thought"]


class Surprising(Filesystem):
    """A /proc that cannot be read as thought."""

    def read_text(self, path: str | Path) -> str:
        """Never."""
        raise RuntimeError("not as thought")


def test_whoever_may_have_ended_is_looked_at_again_where_that_look_fails() -> None:
    """It is recorded once, and nobody is taken for gone."""
    said: list[Reading] = []
    look = Look(said.extend, filesystem=Surprising())
    look.known[7] = Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=(), environment={})
    for _ in range(2):
        look.ended()
    look.close()

    assert list(look.known) == [7]
    assert [one.reason for one in said if isinstance(one, ProbeCall)] == ["RuntimeError: not as thought"]
