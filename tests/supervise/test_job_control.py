"""A real terminal and a real shell: Ctrl-C, Ctrl-Z and fg work as without us."""

import os
import pty
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

PATIENCE_SECONDS = 30.0
PROGRAM = """
import os, select, signal, sys
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.set_wakeup_fd(waker)  # a signal that comes just before the wait for a line ends that wait too
def interrupted(number, frame):
    print("got", signal.Signals(number).name, flush=True)
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGHUP, interrupted)
print("launcher is " + str(os.getppid()) + ".", flush=True)
print("re" + "ady", flush=True)
def next_line():
    while 0 not in select.select([0, woken], [], [])[0]:
        os.read(woken, 64)
    return sys.stdin.readline()
for line in iter(next_line, ""):
    print("read", line.strip(), flush=True)
print("the" + " end", flush=True)
"""


class Terminal:
    """An interactive bash on a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        self._seen = ""
        self.launcher = 0
        pid, self._master = pty.fork()
        if pid == 0:
            environment = {**os.environ, "PERFWATCH_DIR": str(folder), "PS1": "shell> ", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self.pid = pid
        self.until("shell> ")

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    def until(self, words: str) -> str:
        """Read until these words appear; returns what came before."""
        while words not in self._seen:
            assert select.select([self._master], [], [], PATIENCE_SECONDS)[0], f"no {words!r} after {self._seen!r}"
            self._seen += os.read(self._master, 4096).decode(errors="replace")
        before, _, self._seen = self._seen.partition(words)
        return before

    def close(self) -> None:
        """Hang up."""
        os.close(self._master)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A shell in which ``perfwatch run`` has started the program above."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    terminal = Terminal(tmp_path / "sessions")
    terminal.type(f"{sys.executable} -m perfwatch run -- {sys.executable} {program}\n")
    terminal.until("launcher is ")
    terminal.launcher = int(terminal.until("."))
    terminal.until("ready\r\n")
    yield terminal
    terminal.close()


def test_ctrl_c_reaches_the_child_once(terminal: Terminal) -> None:
    """The terminal sends SIGINT to the group; we add no copy and do not end by it."""
    for _ in range(10):  # two copies that come close together are one for the child
        terminal.type("\x03")
        terminal.until("got SIGINT")
        os.kill(terminal.launcher, signal.SIGHUP)  # passed on after whatever the launcher had to do before

        assert "got SIGINT" not in terminal.until("got SIGHUP")
    terminal.type("\x04")
    terminal.until("the end")


def test_ctrl_z_suspends_the_job_and_fg_resumes_it(terminal: Terminal) -> None:
    """The shell sees the whole job stopped, and after fg the child reads on."""
    terminal.type("\x1a")
    terminal.until("Stopped")
    terminal.until("shell> ")
    terminal.type("fg\n")
    terminal.until("program.py")
    terminal.type("after the pause\n")
    terminal.until("read after the pause")
    terminal.type("\x04")
    terminal.until("the end")
