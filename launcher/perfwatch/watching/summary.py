"""The summary that ``run`` prints at the end: steps and step times, suspicions, and what perfwatch used. One screen.

``Tally`` counts the readings on their way from the watch to the recording; ``Summary`` is the text.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfwatch.recording.recording import Sink
from perfwatch.text import clean, duration
from perfwatch.verdict import Verdict
from perfwatch_probes import readings as r

# Compilation, autotuning, the first epoch of a cache: the first steps say nothing about the rest.
WARM_UP_STEPS = 10
# Buckets of 0.2 %: as fine as the three digits that are shown, and a run of any length needs a few thousand at most.
BUCKET = math.log(1.002)
MOST_SAID = 8
FIRST_OF_ALL = ("hung", "slow")  # the states before an end that say more than the end


@dataclass
class Tally:
    """Passes everything on to the recorder (None: no disk took one) and counts the steps."""

    recorder: Sink | None
    steps: dict[int, int] = field(default_factory=dict)  # of each process
    turns: dict[int, float | None] = field(default_factory=dict)  # of each process: how many of them belong together
    _buckets: Counter[int] = field(default_factory=Counter)

    def append(self, at: float, readings: Sequence[r.Reading], known_at: float = 0.0) -> None:
        """Record readings made ``at`` seconds after the session began."""
        for reading in readings:
            if isinstance(reading, r.Steps):
                self._count(reading)
        if self.recorder is not None:
            self.recorder.append(at, readings, known_at)

    def event(
        self, at: float, kind: str, text: str, verdict: Verdict | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Record an event."""
        if self.recorder is not None:
            self.recorder.event(at, kind, text, verdict, facts)

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Protect what a verdict rests on."""
        if self.recorder is not None:
            self.recorder.pin(first_at, last_at, incident)

    def quantile(self, share: float) -> float | None:
        """The step time (seconds, to 0.2 %) that this share of the steps did not exceed; None without steps."""
        wanted = share * sum(self._buckets.values())
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= wanted:
                return math.exp(bucket * BUCKET)
        return None

    def _count(self, reading: r.Steps) -> None:
        before = self.steps.get(reading.pid, 0)
        if reading.count == before:
            return
        self.steps[reading.pid], self.turns[reading.pid] = reading.count, reading.steps_each_turn
        # The newest interval ends in step ``count``, the one before it in ``count - 1`` ...
        for step, interval in zip(range(reading.count, 0, -1), reversed(reading.interval_seconds), strict=False):
            if step > max(before, WARM_UP_STEPS) and interval > 0:
                self._buckets[round(math.log(interval) / BUCKET)] += 1


@dataclass(frozen=True)
class Summary:
    """The last words about one run.

    Args of note: ``said`` are the sentences said while it ran, oldest first, each with what it was: suspected, reported
    or retracted; ``cost_seconds`` is CPU time of perfwatch and its children.
    """

    elapsed_seconds: float
    ending: str
    tally: Tally
    verdict: Verdict | None
    said: tuple[tuple[str, str], ...]
    cost_seconds: float
    session: str
    loss: str = ""

    def text(self) -> str:
        """One line about a good end; else plain lines, each starting with what it is about."""
        if self.verdict is not None and self.verdict.cause == "finished" and not self.said and not self.loss:
            return f"perfwatch: finished ({clean(self.ending)}) after {duration(self.elapsed_seconds)}, {self._brief()}"
        state, cause = self._until_then()
        first = f"{state}, then {self.ending}" if state else self.ending
        rows = [("", f"{first} after {duration(self.elapsed_seconds)}"), ("steps", self._steps())]
        rows += self.said[-MOST_SAID:] or (("incidents", "none"),)
        if self.verdict is not None and self.verdict.state not in ("healthy", "inconclusive"):
            rows.append(
                ("verdict", f"{state}: {cause}; then {self.verdict.summary}" if state else self.verdict.summary)
            )
        share = 100 * self.cost_seconds / max(self.elapsed_seconds, 0.001)
        rows.append(("used", f"{duration(self.cost_seconds)} of CPU by perfwatch ({share:.1f} % of a core)"))
        rows.append(("details", f"perfwatch report {self.session}" if self.session else "nothing was recorded"))
        if self.loss:
            rows.append(("lost", self.loss))
        return "\n".join(
            f"perfwatch: {name + ':':<11}{clean(text)}" if name else f"perfwatch: {text}" for name, text in rows
        )

    def _brief(self) -> str:
        """Steps and step times in few words, that there was no incident, and where the details are."""
        count, p50 = self._count(), self.tally.quantile(0.50)
        steps = "no steps counted" if not count else f"{count} steps"
        pace = "" if p50 is None else f", p50 {duration(p50, 3)}"
        return f"{steps}{pace}, no incident" + (f"; perfwatch report {clean(self.session)}" if self.session else "")

    def _until_then(self) -> tuple[str, str]:
        """State and cause of a job that is gone, by what was reported last and not retracted; empty where its end says it all."""
        kind, text = self.said[-1] if self.said else ("", "")
        state, _, cause = text.partition(" (")[0].partition(": ")
        gone = self.verdict is not None and self.verdict.state == "gone" and self.verdict.cause != "finished"
        return (state, cause) if gone and kind == "reported" and state in FIRST_OF_ALL else ("", "")

    def _count(self) -> str:
        """How many steps were counted, and where; empty where none was."""
        ranks = len(self.tally.steps)
        if not ranks:
            return ""
        fewest, most = min(self.tally.steps.values()), max(self.tally.steps.values())
        count = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        count += "" if ranks == 1 else f" on each of {ranks} processes" if fewest == most else f" on {ranks} processes"
        turns = set(self.tally.turns.values())
        if turns != {1.0}:
            alike = turns.pop() if len(turns) == 1 else None
            count += " of several optimizers" + (f", {alike:g} to a turn" if alike else "")
        return count

    def _steps(self) -> str:
        count = self._count()
        if not count:
            return "none counted"
        p50, p95, p99 = (self.tally.quantile(share) for share in (0.50, 0.95, 0.99))
        if p50 is None or p95 is None or p99 is None:
            return f"{count}; too few for times (the first {WARM_UP_STEPS} are warm-up)"
        return f"{count}; p50 {duration(p50, 3)}, p95 {duration(p95, 3)}, p99 {duration(p99, 3)} (first {WARM_UP_STEPS} left out)"
