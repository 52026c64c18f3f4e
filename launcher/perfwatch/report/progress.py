"""A progress bar on a terminal, nothing in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.progress import Progress

from perfwatch.report.console import console


@contextmanager
def bar(stream: IO[str], what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield ``advance(done, total)``. The bar is drawn on ``stream`` if that is a terminal, and gone afterwards."""
    if not stream.isatty():
        yield lambda done, total: None
        return
    with Progress(console=console(stream), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
