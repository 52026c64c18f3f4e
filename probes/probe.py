"""What every probe is: something that looks, never touches, and either sees or says why it cannot.

A probe returns readings or raises ``Unavailable``. Missing is not zero: there is no third way.
The watcher records, for every probe and every time, how long the look took and how it ended (``ProbeCall``).
"""

from collections.abc import Iterable
from typing import Protocol

from perfwatch.probes.readings import Reading


class Unavailable(Exception):
    """A witness that cannot be had now.

    Args:
        reason: what happened and why, one sentence ("ptrace of pid 41 denied: owned by uid 1000").
        advice: the exact command or setting that would make it available; empty when nothing would.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class Probe(Protocol):
    """One source of truth. ``NAME`` is the word used in the recording, in ``doctor`` and in the README."""

    NAME: str
    NEEDS: str  # privilege or kernel feature, in words, for ``doctor``
    COST: str  # what one look costs, measured, in words

    def look(self) -> Iterable[Reading]:
        """Read the source once. Raises Unavailable; never anything else for a state of the world."""
        ...
