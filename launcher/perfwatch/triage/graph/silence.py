"""For how long something has not moved, how that is known, and the one rule for combining it along a chain of waits.

Four sources differ in what they exclude. The kernel remembers the last run of a thread; a wait that only its object can end has
lasted since then. An observed move says when the thread last did something. A thread that was only watched has not moved since the
first sample; it may have stood long before. The job remembers when it last trained: a log, a compute pool, other ranks that wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Source(IntEnum):
    """How the silence is known."""

    WATCHED = 0  # since the first sample
    REMEMBERED = 1  # by the job: log, compute pool, others that wait
    OBSERVED = 2  # since a move that was seen
    KERNEL = 3  # since the last run, which only the awaited object can have ended


@dataclass(frozen=True, order=True)
class Silence:
    """Seconds without a move."""

    seconds: float
    source: Source = Source.WATCHED

    @property
    def is_bounded(self) -> bool:
        """True if something is known to have moved when it began: it is no longer than that."""
        return self.source in (Source.OBSERVED, Source.KERNEL)


NOT_SILENT = Silence(0.0, Source.WATCHED)


def along(sinks: Iterable[Silence], start: Silence | None, changed: Silence | None, step: Silence | None) -> Silence:
    """The silence of a wait: the least of its sinks, but no longer than since its start is known to have moved, or made a step.

    A start that was only watched bounds nothing: it may have waited long before. Without a sink that was seen, the start's own counts.
    """
    found = list(sinks) or ([start] if start is not None else [])
    bounds = [one for one in (changed, step) if one is not None and one.is_bounded]
    return min([*found, *bounds], default=NOT_SILENT)


def at_least(silence: Silence, remembered: Iterable[float]) -> Silence:
    """Where the sinks leave no trace of when they began to wait (they poll, or run): what the job remembers, if that is longer."""
    return max(silence, Silence(max(remembered, default=0.0), Source.REMEMBERED))
