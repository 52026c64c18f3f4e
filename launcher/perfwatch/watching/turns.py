"""Which processes are sampled next, if a job has more than can be sampled at once."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

# Half of the time that slowness is judged by: every rank is in it, and its workers have their turns.
FRESH_SECONDS = 8.0


def turn(everybody: Sequence[T], number: int, most: int) -> list[T]:
    """Some of all, others the next time: of ranks, one that stops stops them all."""
    first = number * most % max(1, len(everybody))
    return [*everybody[first:], *everybody[:first]][:most]


class Turns:
    """Remembers who was sampled when: first the ranks that were not lately, then who works for them, the longest ago first.

    A job of eight ranks on one host is looked at whole within two turns; one that fits into a turn is in each of them, and so are
    a few ranks among many others: what they are at decides.
    """

    def __init__(self) -> None:
        self._sampled_at: dict[int, float] = {}

    def take(self, ranks: Sequence[int], others: Sequence[int], most: int, at: float) -> list[int]:
        """The next ones, at most so many; ranks and others come nearest first, ``at`` is now (seconds)."""
        known = [*ranks, *(pid for pid in others if pid not in ranks)]
        self._sampled_at = {pid: when for pid, when in self._sampled_at.items() if pid in known}
        always = set(ranks) if 2 * len(ranks) <= most else set()
        order = sorted(
            known, key=lambda pid: (pid not in always, self._is_fresh(pid, at), pid not in ranks, self._last(pid))
        )
        chosen = order[:most]
        self._sampled_at.update(dict.fromkeys(chosen, at))
        return chosen

    def _last(self, pid: int) -> float:
        return self._sampled_at.get(pid, float("-inf"))

    def _is_fresh(self, pid: int, at: float) -> bool:
        return at - self._last(pid) < FRESH_SECONDS
