"""The hang that was reported, and when its cause is corrected. Slow causes that were reported, and when each is retracted."""

from perfwatch.triage.diagnose import UNNAMED
from perfwatch.verdict import Verdict

AWAY_SECONDS = 45.0  # two windows of samples in which nothing is found
TIMES_AWAY = 2.0  # the time after which it came back
MOST_BETWEEN_SECONDS = 120.0  # what comes back later than that is another occasion
STANDS_SECONDS = 4.0  # three judgements of a hang that was reported
MOST_PLACES = 64  # in memory

Place = tuple[int, str] | None


class ReportedHang:
    """One hang: the places that were reported, and how long the newest cause has stood.

    Ranks are sampled one after the other, so another rule can explain the reported line better a moment later. Its cause is a
    correction once it has stood for some seconds. Rules that alternate are not reported in turn: each correction must stand twice as
    long as the one before.
    """

    def __init__(self) -> None:
        self._places: set[Place] = set()
        self._corrections = 0
        self._reported: str | None = None  # the cause
        self._newest: str | None = None
        self._stands_since = 0.0

    def see(self, verdict: Verdict, at: float) -> None:
        """Take in a verdict. One that is not hung changes nothing: a reported hang stands until the job moves."""
        if verdict.state == "hung" and verdict.cause != self._newest:
            self._newest, self._stands_since = verdict.cause, at

    def is_news(self, verdict: Verdict, at: float) -> bool:
        """True if a hang of another cause than the reported one is worth a report: at another place, or as a correction."""
        if _place(verdict) not in self._places and len(self._places) < MOST_PLACES:
            return True
        stands = at - self._stands_since >= STANDS_SECONDS * 2.0**self._corrections
        return verdict.cause != UNNAMED and (stands or self._reported == UNNAMED)

    def report(self, verdict: Verdict) -> None:
        """It is reported now."""
        self._corrections += _place(verdict) in self._places
        self._places.add(_place(verdict))
        self._reported = verdict.cause


def _place(verdict: Verdict) -> Place:
    """The process and the function that are named first; None where none is."""
    first = verdict.culprits[0] if verdict.culprits else None
    return (first.pid, first.frame.partition(" ")[0]) if first is not None and first.frame else None


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
        """True if it was told, and was not away for long since."""
        return (cause or "") in self._told

    def are_away(self, at: float) -> bool:
        """True if each has not been found for long enough to be taken back."""
        return all(self._is_away(cause, at) for cause in self._told)

    def _is_away(self, cause: str, at: float) -> bool:
        needed = max(AWAY_SECONDS, TIMES_AWAY * self._between.get(cause, 0.0))
        return at - self._found.get(cause, at) >= needed
