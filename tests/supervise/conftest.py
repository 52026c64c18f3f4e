"""Real launchers around small real programs. A program says "ready" on its stdout; nothing here sleeps and hopes."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = (
    90.0  # a deadline for broken code, never a wait: torchrun alone takes half a minute on a crowded machine
)


@dataclass
class Launched:
    """A running ``perfwatch run`` with pipes to its child's streams."""

    process: subprocess.Popen[str]
    _read: str = ""

    @property
    def pid(self) -> int:
        """The launcher."""
        return self.process.pid

    def line(self) -> str:
        """The next line that the child prints; empty at the end of its stdout."""
        assert self.process.stdout is not None
        stdout = self.process.stdout.fileno()
        while "\n" not in self._read:
            assert select.select([stdout], [], [], PATIENCE_SECONDS)[0], f"no line, but {self._read!r}"
            data = os.read(stdout, 65536).decode()
            if not data:
                return ""
            self._read += data
        line, _, self._read = self._read.partition("\n")
        return line

    def said(self) -> str:
        """The next line of stderr behind the one that says where the run is recorded."""
        assert self.process.stderr is not None
        assert select.select([self.process.stderr], [], [], PATIENCE_SECONDS)[0]
        line = self.process.stderr.readline()
        return self.process.stderr.readline() if line.startswith("perfwatch: recording to ") else line

    def end(self) -> int:
        """Wait for the launcher; its exit code, negative for a signal."""
        return self.process.wait(PATIENCE_SECONDS)

    def rest(self) -> tuple[str, str]:
        """What is left on stdout and stderr once the launcher has ended."""
        output, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self._read + (output or ""), errors


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start ``perfwatch run OPTIONS -- COMMAND``; whatever is left is killed afterwards."""
    started: list[Launched] = []

    def start(*command: str, options: tuple[str, ...] = (), **arguments: Any) -> Launched:
        extra: dict[str, str] = arguments.pop("env", {})
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), **extra}
        process = subprocess.Popen(
            [sys.executable, "-m", "perfwatch", "run", *options, "--", *command],
            stdin=arguments.pop("stdin", subprocess.DEVNULL),
            stdout=arguments.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **arguments,
        )
        started.append(Launched(process))
        return started[-1]

    yield start
    for launched in started:
        if launched.process.poll() is None:
            for pid in _family(launched.pid):  # the job would outlive its launcher
                with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(pid, signal.SIGKILL)
            launched.process.wait()
        for stream in (launched.process.stdin, launched.process.stdout, launched.process.stderr):
            if stream is not None:
                stream.close()


def _family(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [pid, *(member for child in children for member in _family(child))]


def python(program: str) -> tuple[str, ...]:
    """A command that runs this text."""
    return (sys.executable, "-c", program)
