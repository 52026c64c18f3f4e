"""Single keys from a terminal, without Enter. The terminal's settings are restored afterwards."""

import os
import re
import signal
import sys
import termios
import tty
from types import FrameType, TracebackType
from typing import IO

from perfwatch_probes.readable import readable

ESCAPE = "\x1b"
# A wheel over the other screen of a terminal arrives as arrow keys; text can still be selected, as it could not with mouse reports.
WHEEL_ON, WHEEL_OFF = "\x1b[?1007h", "\x1b[?1007l"
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)


class Keyboard:
    """Within ``with``: keys are read one by one, unseen. A resized window and Ctrl-C or SIGTERM end a wait too.

    Args:
        stream: what is typed into; where that is no terminal there are no keys.
    """

    def __init__(self, stream: IO[str] = sys.stdin) -> None:
        self._descriptor = stream.fileno() if stream.isatty() else None
        self._before: list[object] | None = None
        self._handlers = {
            number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT)
        }
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self.leaving = False
        self._typed: list[str] = []

    def __enter__(self) -> "Keyboard":
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        for number in self._handlers:
            signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._descriptor is not None and self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
        os.close(self._woken)
        os.close(self._wake)

    def wait(self, seconds: float) -> str:
        """The key that was pressed within so many seconds; empty for none. An arrow is an escape sequence, whole."""
        if self._typed:
            return self._typed.pop(0)
        watched = [self._woken] if self._descriptor is None else [self._woken, self._descriptor]
        ready = readable(seconds, *watched)
        if self._woken in ready:
            os.read(self._woken, 64)
        if self._descriptor is None or self._descriptor not in ready:
            return ""
        typed = os.read(self._descriptor, 64).decode("utf-8", "replace")
        if not typed:  # the terminal is gone
            self.leaving = True
        key, *self._typed = _KEY.findall(typed) or [""]
        return str(key)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGWINCH:
            self.leaving = True
        os.write(self._wake, b"x")
