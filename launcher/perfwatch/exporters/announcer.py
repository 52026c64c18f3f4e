"""Which changes of the verdict are worth a post: each once, a flapping job no more often than a person can read.

Well is well: from healthy to busy and back is no news, unless something was wrong before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.verdict import Verdict

WELL = ("healthy", "busy", "inconclusive")
MOST_AT_ONCE = 6
REFILL_SECONDS = 600.0  # one more post after so long

Told = tuple[str, str | None]


@dataclass(frozen=True)
class Change:
    """A verdict to post; ``before``: state and cause that were posted last, None for the first."""

    verdict: Verdict
    before: Told | None

    @property
    def kind(self) -> str:
        """Of ``wanted.KINDS_OF_NEWS``. A good end after something was wrong is a recovery: who was told of it is told of its end."""
        state, cause = self.verdict.state, self.verdict.cause
        if state == "gone" and cause == "finished":
            return "recovered" if self.before is not None and self.before[0] in ("hung", "slow") else "finished"
        return {"gone": "crashed", "hung": "hung", "slow": "slow"}.get(state, "recovered")


class Announcer:
    """Hears every verdict that is told, and says which one is due.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._posted: Told | None = None
        self._pending: Verdict | None = None
        self._left = float(MOST_AT_ONCE)
        self._counted_at = clock()

    def hear(self, verdict: Verdict) -> None:
        """A verdict was told. One that is not yet posted gives way to it: only what holds now is news."""
        if verdict.state == "inconclusive":
            return  # a suspicion is not a verdict
        self._pending = None if self._alike(verdict) else verdict

    def due(self) -> Change | None:
        """What is to be posted now, if anything is."""
        now = self._clock()
        self._left = min(float(MOST_AT_ONCE), self._left + (now - self._counted_at) / REFILL_SECONDS)
        self._counted_at = now
        if self._pending is None or self._left < 1.0:
            return None
        change = Change(self._pending, self._posted)
        self._posted, self._pending = (change.verdict.state, change.verdict.cause), None
        self._left -= 1.0
        return change

    def _alike(self, verdict: Verdict) -> bool:
        if self._posted is None or self._posted[0] in WELL:
            return verdict.state in WELL
        return (verdict.state, verdict.cause) == self._posted
