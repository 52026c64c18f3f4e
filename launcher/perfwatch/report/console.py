"""Where reports are printed: colour on a terminal only, never with NO_COLOR; 80 columns where nobody knows better.

A table whose last column is worth its length has ``LIST_COLUMNS`` in a pipe.
"""

import os
import re
from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.segment import Segment

LIST_COLUMNS = 10_000
_BLANKS = re.compile(r" +$", re.MULTILINE)


class _Console(Console):
    @property
    def encoding(self) -> str:
        """ASCII in the C locale, whatever Python makes of it: the terminal may show nothing else."""
        told = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
        return "ascii" if told in ("C", "POSIX") else super().encoding

    def on_broken_pipe(self) -> None:
        """Whoever read us has left: ``perfwatch.cli`` knows what to do; rich would end with 1, as for an error."""
        raise BrokenPipeError

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Lines without the blanks that fill a table up to the width: in a pipe they end in somebody's chat."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else _BLANKS.sub("", text)


def console(stream: IO[str], piped_columns: int | None = None) -> Console:
    """A console on ``stream`` that neither highlights nor interprets what it is given; how wide it is where it is no terminal."""
    made = _Console(file=stream, highlight=False, markup=False, emoji=False)
    if piped_columns is not None and not made.is_terminal:
        made.width = piped_columns
    return made
