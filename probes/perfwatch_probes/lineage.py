"""The one walk from a process to its ancestors. It ends whatever a recording says: parents may form a cycle there."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from perfwatch_probes.bounds import MOST_GENERATIONS

T = TypeVar("T")


def lineage(first: T | None, above: Callable[[T], T | None]) -> Iterator[T]:
    """A process and its ancestors, nearest first, no further than ``MOST_GENERATIONS``.

    Args:
        first: where the walk begins: a pid, or a process.
        above: the parent; None at the top.
    """
    here = first
    for _ in range(MOST_GENERATIONS):
        if here is None:
            return
        yield here
        here = above(here)
        if here == first:
            return
