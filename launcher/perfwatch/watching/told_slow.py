"""Slow causes that were reported, and how long each must be absent before it is retracted."""

from perfwatch.verdict import Verdict

AWAY_SECONDS = 45.0  # two windows of samples in which nothing is found
TIMES_AWAY = 2.0  # the time after which it came back
MOST_BETWEEN_SECONDS = 120.0  # what comes back later than that is another occasion


class ToldSlow:
    """The slow causes that were told and not taken back, with when each was last found and after how long it came back."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}
        self._between: dict[str, float] = {}
        self._told: set[str] = set()

    def see(self, verdict: Verdict, at: float) -> None:
        """Take in what a verdict finds slow: the verdict itself, and what it has found besides, however sure."""
        causes = {one.cause for one in verdict.findings if one.state == "slow"}
        for cause in causes | ({verdict.cause or ""} if verdict.state == "slow" else set()):
            between = at - self._found.get(cause, at)
            if between <= MOST_BETWEEN_SECONDS:
                self._between[cause] = max(self._between.get(cause, 0.0), between)
            self._found[cause] = at
        self._told -= {cause for cause in self._told if self._is_away(cause, at) and len(self._told) > 1}

    def tell(self, cause: str | None) -> None:
        """It is told now."""
        self._told.add(cause or "")

    def clear(self) -> None:
        """Something else was told in its place: it would be news again."""
        self._told.clear()

    def has(self, cause: str | None) -> bool:
        """Whether it was told, and was not away for long since."""
        return (cause or "") in self._told

    def are_away(self, at: float) -> bool:
        """Whether each has not been found for long enough to be taken back."""
        return all(self._is_away(cause, at) for cause in self._told)

    def _is_away(self, cause: str, at: float) -> bool:
        needed = max(AWAY_SECONDS, TIMES_AWAY * self._between.get(cause, 0.0))
        return at - self._found.get(cause, at) >= needed
