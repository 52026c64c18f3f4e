"""What one look at a process covers, and what counts as a look at its stacks."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfwatch.probes.readings import Reading
from perfwatch.triage.history import History
from perfwatch.watching.look import MOST_THREADS, Look

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
