"""Print rows at each interval, until a signal or the last interval."""

import time
from collections.abc import Callable, Sequence
from typing import IO

from rich.text import Text

from perfwatch.dmon.rows import FIRST_SECONDS, Monitor, Row
from perfwatch.dmon.table import (
    NARROW,
    WIDE,
    WIDE_COLUMNS,
    Column,
    chosen,
    csv_heading,
    csv_line,
    heading,
    json_line,
    line,
)
from perfwatch.errors import NoSuchTarget, PerfwatchError
from perfwatch.report.console import console
from perfwatch.text import say
from perfwatch_probes.probe import Unavailable

GATHER_SECONDS = 0.2
HEADING_EVERY_LINES = 20


class MonitorStream:
    """Writes rows to a stream.

    Args:
        stream: where to.
        form: text, csv or json.
        select: letters of the column groups, for text; what fits when empty.
        wanted: numbers of the cards; all when None.
        others: further columns, before the jobs.
    """

    def __init__(
        self, stream: IO[str], form: str, select: str, wanted: set[int] | None, others: Sequence[Column] = ()
    ) -> None:
        self._stream, self._form, self._wanted = stream, form, wanted
        self._console = console(stream)
        self._cut = self._console.is_terminal  # a line for each row; a pipe gets all of it
        narrow = self._cut and self._console.width < WIDE_COLUMNS
        columns = chosen(select or (NARROW if narrow else WIDE))
        jobs = [column for column in columns if column.group == "j"]  # as wide as they need
        self._columns = [*(column for column in columns if column not in jobs), *others, *jobs]
        self._others = others
        self._lines = 0

    def run(
        self,
        monitor: Monitor,
        wait: Callable[[float], bool],
        interval: float,
        count: int | None,
        complaints: IO[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print until ``wait`` says that the user wants to quit, or ``count`` intervals are over.

        Raises:
            NoSuchTarget: there is no NVIDIA driver, or no such card.
            PerfwatchError: the driver is there and does not answer.
        """
        began = clock()
        due: float | None = None
        silence = ""
        while count is None or count > 0:
            try:
                monitor.gather()
            except Unavailable as why:
                raise NoSuchTarget(why.reason, why.advice or "perfwatch doctor") from None
            if monitor.silence != silence:
                silence = monitor.silence
                if silence:
                    say(complaints, silence)
            if due is None:
                if monitor.ready:
                    self._check(monitor.rows())  # from here on there is something to compare with
                    due = clock() + interval
                elif clock() - began > FIRST_SECONDS:
                    raise PerfwatchError("the NVIDIA driver has not described its cards", "perfwatch doctor")
            elif clock() >= due:
                due += interval
                self.show(monitor.rows())
                count = None if count is None else count - 1
            if count != 0 and wait(min(GATHER_SECONDS, interval / 2)):
                return

    def show(self, rows: list[Row]) -> None:
        """One interval."""
        for row in rows:
            if self._wanted is not None and row.gpu.index not in self._wanted:
                continue
            if self._form == "text":
                if self._lines % HEADING_EVERY_LINES == 0:
                    self._print(heading(self._columns))
                self._print(line(row, self._columns))
            else:
                if self._form == "csv" and self._lines == 0:
                    self._stream.write(csv_heading(self._others) + "\n")
                written = csv_line if self._form == "csv" else json_line
                self._stream.write(written(row, self._others) + "\n")
            self._lines += 1
        self._stream.flush()

    def _print(self, text: Text) -> None:
        if self._cut:
            self._console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(text, soft_wrap=True)

    def _check(self, rows: list[Row]) -> None:
        there = {row.gpu.index for row in rows}
        missing = (self._wanted or set()) - there
        if missing:
            cards = ", ".join(str(one) for one in sorted(there)) or "none"
            raise NoSuchTarget(f"there is no gpu {min(missing)} here", f"cards of this machine: {cards}")
