"""Where reports are printed: colour on a terminal only, never with NO_COLOR; 80 columns where the width is unknown.

A table whose last column is worth its length has ``LIST_COLUMNS`` in a pipe.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import IO

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

LIST_COLUMNS = 10_000
GAP = 2  # blanks between two columns
LEAST_LAST = 24  # columns of what a line is about
Row = Sequence[Text | str]
_BLANKS = re.compile(r" +$", re.MULTILINE)


class _Console(Console):
    @property
    def encoding(self) -> str:
        """ASCII in the C locale, whatever Python makes of it: the terminal may show nothing else."""
        told = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
        return "ascii" if told in ("C", "POSIX") else super().encoding

    def on_broken_pipe(self) -> None:
        """The reader has closed the pipe: ``perfwatch.cli`` knows what to do; rich would end with 1, as for an error."""
        raise BrokenPipeError

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Lines without the blanks that fill a table up to the width: in a pipe they end up in a chat."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else _BLANKS.sub("", text)


def console(stream: IO[str], piped_columns: int | None = None) -> Console:
    """A console on ``stream`` that neither highlights nor interprets what it is given; how wide it is where it is no terminal."""
    made = _Console(file=stream, highlight=False, markup=False, emoji=False)
    if piped_columns is not None and not made.is_terminal:
        made.width = piped_columns
    return made


def list_table(
    headings: Sequence[str], rows: Sequence[Row], spare: Sequence[str], width: int, folded: bool = False
) -> Table:
    """A line for each thing, of which nothing but the end of the last column is cut.

    Args:
        headings: of the columns.
        rows: of as many cells.
        spare: columns that are left out where the terminal is narrow, the first one first.
        width: of the terminal.
        folded: the last column goes on below instead.
    """
    texts = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [
        max(len(name), *(row[number].cell_len for row in texts)) if texts else len(name)
        for number, name in enumerate(headings[:-1])
    ]
    shown = list(range(len(headings)))
    for name in spare:
        if sum(widths[number] + GAP for number in shown[:-1]) + LEAST_LAST <= width:
            break
        shown.remove(headings.index(name))
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for number in shown[:-1]:
        table.add_column(headings[number], no_wrap=True, min_width=widths[number])
    table.add_column(headings[-1], ratio=1, min_width=12, overflow="fold" if folded else "ellipsis", no_wrap=not folded)
    for row in texts:
        table.add_row(*(row[number] for number in shown))
    return table
