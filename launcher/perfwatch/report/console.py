"""Where reports are printed: colour on a terminal only, never with NO_COLOR; 80 columns where nobody knows better.

A table whose last column is worth its length has ``LIST_COLUMNS`` in a pipe.
"""

from typing import IO, Any, cast

from rich.console import Console

LIST_COLUMNS = 10_000


class _Unpadded:
    """A stream that is no terminal, of which each line ends with its last letter: rich fills tables with blanks."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Without the blanks before each line end."""
        return self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in text.split("\n"))[:-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read us has left: ``perfwatch.cli`` knows what to do; rich would end with 1, as for an error."""
        raise BrokenPipeError


def console(stream: IO[str], piped_columns: int | None = None) -> Console:
    """A console on ``stream`` that neither highlights nor interprets what it is given; how wide it is where it is no terminal."""
    made = _Console(
        file=stream if stream.isatty() else cast(IO[str], _Unpadded(stream)), highlight=False, markup=False, emoji=False
    )
    if piped_columns is not None and not made.is_terminal:
        made.width = piped_columns
    return made
