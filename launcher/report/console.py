"""Where reports are printed: colour on a terminal only, never with NO_COLOR; 80 columns where nobody knows better."""

from typing import IO

from rich.console import Console


def console(stream: IO[str]) -> Console:
    """A console on ``stream`` that neither highlights nor interprets what it is given."""
    return Console(file=stream, highlight=False, markup=False, emoji=False)
