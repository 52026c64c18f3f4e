"""Where reports are printed: colour on a terminal only, never with NO_COLOR; 80 columns where nobody knows better."""

from typing import IO

from rich.console import Console


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read us has left: ``perfwatch.cli`` knows what to do; rich would end with 1, as for an error."""
        raise BrokenPipeError


def console(stream: IO[str]) -> Console:
    """A console on ``stream`` that neither highlights nor interprets what it is given."""
    return _Console(file=stream, highlight=False, markup=False, emoji=False)
