"""Writes our few lines to stderr from processes of their own: a full pipe must not stop the launcher."""

import contextlib
import os
import select
import signal
import stat
import time
from collections import deque
from typing import NoReturn

from perfwatch.processes import linux

ERASE = b"\r\x1b[K"  # the bar, which is drawn again below
MOST_WAITING = 64  # behind a stderr without a reader; what comes after is in the session only


class Printer:
    """One text after another, each in a short-lived child that ends with us."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._pid = 0

    @property
    def busy(self) -> bool:
        """True if something is not yet written."""
        return self._pid != 0

    def say(self, text: str) -> None:
        """Write these lines as soon as those before are written."""
        self._waiting.append(text if text.endswith("\n") else text + "\n")
        self._next()

    def ended(self, pid: int) -> None:
        """A child of the launcher was reaped; if it was ours, go on with the next text."""
        if pid == self._pid:
            self._pid = 0
            self._next()

    def finish(self, seconds: float) -> None:
        """Wait for what is not yet written, but no longer than this. SIGCHLD is blocked, and no other code reads it."""
        ends = time.monotonic() + seconds
        while self._pid and (left := ends - time.monotonic()) > 0:
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                self.ended(self._pid)
            else:
                signal.sigtimedwait((signal.SIGCHLD,), left)

    def _next(self) -> None:
        if self._pid or not self._waiting:
            return
        text = self._waiting.popleft().encode("utf-8", "backslashreplace")
        launcher = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            write_if_room(text)  # no memory for one more process, or none allowed
            return
        if self._pid == 0:
            _write(launcher, text)


def write_if_room(text: bytes) -> None:
    """Write a line to stderr from this very process, unless that could block."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):  # stderr is closed, or its reader is gone
        if len(text) <= select.PIPE_BUF and any(event & select.POLLOUT for _, event in poll.poll(0)):
            os.write(2, text)


def _to_a_new_line() -> bytes:
    """What brings us to the start of a line if the job's progress bar stands on it; of a pipe it is not known what was written last."""
    with contextlib.suppress(OSError):
        if os.isatty(2):
            return ERASE
        here = os.fstat(2)
        if stat.S_ISREG(here.st_mode) and here.st_size:
            ours = os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            return b"" if os.pread(ours, 1, here.st_size - 1) == b"\n" else b"\n"
    return b""


def _write(launcher: int, text: bytes) -> NoReturn:
    try:
        linux.die_with_parent(launcher)
        text = _to_a_new_line() + text
        while text:
            text = text[os.write(2, text) :]
    finally:
        os._exit(0)
