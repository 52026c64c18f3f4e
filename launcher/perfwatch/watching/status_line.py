"""What ``attach`` shows while it works: on a terminal one line that is drawn again, in a pipe a line at the start and now and then."""

import os
import shutil
import time
from collections.abc import Callable
from typing import IO

from perfwatch.text import clean, duration, say
from perfwatch.verdict import Verdict

REDRAW_SECONDS = 0.2
LINE_EVERY_SECONDS = 10.0  # in a pipe
ERASE = "\r\x1b[K"


class StatusLine:
    """One line about work that goes on.

    Args:
        stream: where it is shown; a terminal has it redrawn.
        clock: monotonic seconds.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._redraws = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at = clock()
        self._drawn = False

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def begin(self, text: str) -> None:
        """A line at once: the first one."""
        self._shown_at = self._clock()
        if self._redraws:
            self._draw(text)
        else:
            say(self._stream, text)

    def now(self, text: str) -> None:
        """What is known now; shown when the last line is old enough."""
        if self._clock() - self._shown_at < (REDRAW_SECONDS if self._redraws else LINE_EVERY_SECONDS):
            return
        self.begin(text)

    def clear(self) -> None:
        """Leave an empty line on a terminal, whatever stood there (a status, the echo of a Ctrl-C)."""
        if self._redraws and self._drawn:
            self._write(ERASE)
            self._drawn = False

    def _draw(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns
        self._write(ERASE + f"perfwatch: {clean(text)}"[: columns - 1])
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._redraws = False  # a terminal that is gone


def leaning(verdict: Verdict | None, decides_in_seconds: float | None) -> str:
    """When a verdict that is not given yet will be given, and what it leans to."""
    if verdict is None:
        return "nothing is known yet"
    suspect = verdict.suspect
    if suspect is not None and suspect.decides_in_seconds > 0:
        unless = "nothing moves" if suspect.state == "hung" else "nothing changes"
        return f"{suspect.state} ({suspect.cause}) in {duration(suspect.decides_in_seconds)} if {unless}"
    soon = (
        f"decides in {duration(decides_in_seconds)}; "
        if decides_in_seconds is not None and decides_in_seconds >= 1.0
        else ""
    )
    if suspect is not None:
        return f"{soon}leaning to {suspect.state} ({suspect.cause})"
    if verdict.state == "inconclusive":
        return soon + verdict.summary
    return f"{soon}leaning to {verdict.state}" + (f" ({verdict.cause})" if verdict.cause else "")
