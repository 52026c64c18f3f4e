"""How fast the ranks step, from the agent's pages: what a window costs is told by it, and whether they came back to speed."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.captures.capture import Subject
from perfwatch.text import duration
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.steps import PAGE_BYTES, count_steps, parse_page

RECENT = 32  # intervals that make the pace of now
FEW_STEPS = 5  # below it a mean says little
CHANGED_TIMES = 2.0  # the newest few against the recent ones
NOISE = 0.02  # a job's own pace drifts by so much


@dataclass(frozen=True)
class Pace:
    """At one moment: ``counts`` by pid; ``seconds`` between steps, the median over recent ones; None where none was made.

    mean_seconds: of the same; far from the median where batches come in bursts.
    newest_seconds: the median of the newest few: what steps take since the job became slow just now.
    """

    at: float
    counts: dict[int, int]
    seconds: float | None
    ago_seconds: float | None  # since any rank's newest step
    mean_seconds: float | None = None
    newest_seconds: float | None = None

    @property
    def stepping(self) -> bool:
        """True if every rank that has made steps makes them still."""
        return (
            self.seconds is not None and self.ago_seconds is not None and self.ago_seconds < max(2.0, 5 * self.seconds)
        )

    @property
    def changed(self) -> bool:
        """True if the newest steps take so much longer or shorter that nothing can be planned by the median of the recent ones."""
        if self.seconds is None or self.newest_seconds is None:
            return False
        return not self.seconds / CHANGED_TIMES <= self.newest_seconds <= self.seconds * CHANGED_TIMES


def as_fast(now: Pace, before: Pace, most_times: float) -> bool:
    """True if steps take at most so many times as long as before, by the median or by the mean."""
    pairs = ((now.seconds, before.seconds), (now.mean_seconds, before.mean_seconds))
    return any(one is not None and was is not None and one <= most_times * was for one, was in pairs)


class Pacer:
    """Reads the pages of some ranks.

    Args:
        place: the agent's folder; None when the job was not started armed.
        subjects: the ranks.
        clock: monotonic seconds, the agent's own.
    """

    def __init__(
        self, place: AgentFolder | None, subjects: tuple[Subject, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._subjects, self._clock = place, subjects, clock

    def look(self) -> Pace:
        """The pace of now."""
        counts: dict[int, int] = {}
        intervals: list[float] = []
        newest: list[float] = []
        ago: list[float] = []
        named = {f"steps-{subject.pid}": subject for subject in self._subjects}
        pages = self._place.tails(named, PAGE_BYTES) if self._place is not None else {}
        for name, (_, content) in pages.items():
            subject = named[name]
            try:
                page = parse_page(content)
            except ValueError:
                continue  # it has made no step
            if page.start_ticks != subject.start_ticks:
                continue  # of another process that had this pid
            steps = count_steps(page, int(self._clock() * 1e9))
            counts[subject.pid] = steps.count
            intervals += steps.interval_seconds[-RECENT:]
            newest += steps.interval_seconds[-FEW_STEPS:]
            if steps.step_ago_seconds is not None:
                ago.append(steps.step_ago_seconds)
        return Pace(
            self._clock(),
            counts,
            statistics.median(intervals) if intervals else None,
            max(ago) if ago else None,
            statistics.fmean(intervals) if intervals else None,
            statistics.median(newest) if newest else None,
        )


def cost(before: Pace, opened: Pace | None, closed: Pace | None, after: Pace) -> str:
    """What a window cost the job, as a sentence.

    Args:
        before: when it was asked for. From then until it opened, the job ran as ever: that is its pace.
        opened: when the profiler began to record; None when the capture did not say.
        closed: when it ended.
        after: when all was done and the ranks had time to come back to speed.
    """
    start = opened or before
    usual = before.seconds if before.stepping else start.seconds if start.stepping else None
    if usual is None:
        return "overhead unknown: no steps of the job are counted"
    if opened is not None and (made := _made(before, opened)) >= FEW_STEPS:
        usual = (opened.at - before.at) / made
    lost = (after.at - start.at) - _made(start, after) * usual
    inside = ""
    if opened is not None and closed is not None and (steps := _made(opened, closed)) > 0:
        inside = f", {duration((closed.at - opened.at) / steps, 3)} in the window"
    back = duration(after.seconds, 3) if after.seconds is not None else "unknown"
    price = duration(lost, 3) if lost >= max(usual, NOISE * (after.at - start.at)) else "no measurable time"
    # Not "the window cost": whatever else slowed the machine meanwhile is in it.
    return f"a step took {duration(usual, 3)} before{inside} and {back} after: at its pace before, the job lost {price} meanwhile"


def _made(first: Pace, last: Pace) -> float:
    """Steps between two looks, of the slowest rank."""
    return min((last.counts.get(pid, count) - count for pid, count in first.counts.items()), default=0)
