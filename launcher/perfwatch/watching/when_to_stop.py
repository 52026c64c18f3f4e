"""When ``attach`` stops: as soon as the verdict is clear."""

from dataclasses import dataclass, field
from datetime import datetime, timezone

from perfwatch.verdict import Coverage, Level, ObserverCost, Suspect, Timeline, Verdict
from perfwatch.watching.attention import leaves_open

STEADY_JUDGEMENTS = 2  # a slow or healthy verdict must come out the same twice ...
STEADY_SECONDS = 3.0  # ... and rest on so many seconds of samples,
PLAIN_CONFIDENCE = Level.HIGH
# ... or so many, if it is not plain: two records, what comes back every few seconds, and a profile of native code where one is asked for
LONGER_SECONDS = 8.0
UNCLEAR_SECONDS = (
    25.0  # without a suspect, a job that is still unclear by then is inconclusive, or busy as far as known
)
SUSPECTED_SECONDS = 12.0  # a suspicion that rests on a dump comes and goes with the dumps
MOST_RESTARTS = 3  # of a suspect's silence: what moves again and again does not come to a verdict of "hung"
RESTARTED_SECONDS = 1.0  # silences are told to a tenth, of looks that are half a second apart
SURE_AT_ONCE = ("gone", "hung")
SURER_SECONDS = 3.0  # ... if they are plain; a second dump often makes them so


@dataclass
class OneShot:
    """Looks at each verdict as it is made and says whether to stop."""

    started_at: float = 0.0
    _suspected_at: float | None = None
    _suspect: Suspect | None = None  # the newest
    _restarts: int = 0  # how often one and the same suspect moved after all
    _same: int = 0
    _last: tuple[str, str | None] | None = field(default=None)

    def done(self, verdict: Verdict, at: float) -> bool:
        """True if this verdict is the one to give, ``at`` seconds after the look began."""
        now = (verdict.state, verdict.cause)
        self._same = self._same + 1 if now == self._last else 1
        self._last = now
        if verdict.state in SURE_AT_ONCE:
            return verdict.confidence >= PLAIN_CONFIDENCE or at - self.started_at >= SURER_SECONDS
        if verdict.state == "inconclusive":
            if verdict.suspect is not None and verdict.suspect.decides_in_seconds > 0:
                self._suspected_at = at
                self._restarts += _moved(self._suspect, verdict.suspect)
                self._suspect = verdict.suspect
            lately = self._suspected_at is not None and at - self._suspected_at < SUSPECTED_SECONDS
            lately = lately and self._restarts < MOST_RESTARTS
            return not lately and at - self.started_at >= UNCLEAR_SECONDS
        return self._same >= STEADY_JUDGEMENTS and at - self.started_at >= _enough(verdict)

    def left(self, verdict: Verdict | None, at: float) -> float | None:
        """Seconds until this verdict is given if it stays; None where what is suspected has its own time."""
        if verdict is None or verdict.state in SURE_AT_ONCE:
            return SURER_SECONDS
        if verdict.suspect is not None and verdict.suspect.decides_in_seconds > 0:
            return None
        return self.started_at + _enough(verdict) - at


def _enough(verdict: Verdict) -> float:
    """For how long a job is watched before this verdict on it is given."""
    plain = verdict.state == "slow" and verdict.confidence >= PLAIN_CONFIDENCE and not leaves_open(verdict)
    doubtful = verdict.state == "inconclusive" or (verdict.state == "busy" and verdict.confidence < Level.HIGH)
    return STEADY_SECONDS if plain else UNCLEAR_SECONDS if doubtful else LONGER_SECONDS


def _moved(before: Suspect | None, now: Suspect) -> bool:
    """True if a suspect's silence has begun anew; another suspect's own silence says nothing of it."""
    if before is None or before.cause != now.cause:
        return False
    return now.silent_seconds < before.silent_seconds - RESTARTED_SECONDS


def unjudged(failure: str, wall: float) -> Verdict:
    """What is told where looking or judging itself fails; ``wall`` is unix time."""
    return Verdict(
        state="inconclusive",
        cause=None,
        confidence=0.0,
        summary=f"no verdict is possible: perfwatch itself failed ({failure})",
        owner="unknown",
        at=datetime.fromtimestamp(wall, tz=timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        coverage=Coverage(ranks_seen=0, world_size=None),
        timeline=Timeline(),
        observer_cost=ObserverCost(),
    )
