"""The list of recordings on a terminal."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.recording.kept import Kept
from perfwatch.report.console import Row, list_table
from perfwatch.report.jobs import STYLES
from perfwatch.text import clean, command_line, duration

COLUMNS = ("SESSION", "AGE", "SIZE", "STATE", "CAUSE", "COMMAND")
SPARE = ("SIZE", "AGE", "CAUSE")  # in a narrow terminal


@dataclass(frozen=True)
class SessionsReport:
    """Sessions, newest first, ready to be printed. now: unix time; asked: which were asked for, if not all."""

    sessions: Sequence[Kept]
    now: float
    asked: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, then what all take together."""
        if not self.sessions and self.asked:
            yield Text(
                clean(f"no session is called {' or '.join(self.asked)}, nor has it in its command: perfwatch sessions")
            )
            return
        if not self.sessions:
            yield Text("no recordings: perfwatch run -- COMMAND, or perfwatch attach, makes one")
            return
        table = list_table(COLUMNS, [self._row(one) for one in self.sessions], SPARE, options.max_width, folded=True)
        if console.is_terminal:
            yield table
        else:
            for line in console.render_lines(table, options, pad=False):
                yield Text("".join(segment.text for segment in line).rstrip())
        total = sum(one.size_bytes for one in self.sessions)
        folders = ", ".join(dict.fromkeys(one.folder.rpartition("/")[0] for one in self.sessions))
        oldest = time.strftime("%Y-%m-%d", time.localtime(self.sessions[-1].created))
        count = len(self.sessions)
        yield Text(
            f"{count} session{'s' if count > 1 else ''} since {oldest}, {size(total)} in {clean(folders)}", style="dim"
        )

    def _row(self, one: Kept) -> Row:
        state = one.state or "-"
        return (
            one.name,
            duration(max(0.0, self.now - one.created)),
            size(one.size_bytes),
            Text(clean(f"{state}, recording" if one.written else state), style=STYLES.get(state, "")),
            clean(one.cause or "-"),
            command_line(one.command) or f"({one.mode})",
        )


def size(count: int) -> str:
    """Bytes as people say them."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 2**10:.0f} KiB"
