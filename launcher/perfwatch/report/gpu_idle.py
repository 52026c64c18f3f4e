"""Which lines of Python the GPU waits for: stacks of the training thread, weighted by what the card did in that very interval.

Each look at a card tells for how much of its interval no kernel was resident; the stacks that were sampled within it tell what
the training thread did meanwhile. An interval is longer than a step's phases, so that a share of its idle time alone would
be spread over phases in which the card worked. Phases are mixed differently from interval to interval, though, and that tells
them apart: for every line the share of its time in which the card idles is the one that best explains all intervals together
(expectation maximisation; each round hands every interval's idle and busy time out again). What is handed out is what was
measured, no more and no less. Where phases are much shorter than the intervals, all intervals look alike and a line's share is
little more than its share of the time: ``told_apart`` says how far that is so. A look at the card is late, and taken to be as late
as explains most.
"""

import bisect
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfwatch.report.idle_time_shares import Mixed, explained
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen
from perfwatch.triage.job import Member
from perfwatch.triage.questions import card_index, card_looks, cards_of, is_user, short_name
from perfwatch_probes import readings as r

RECENT_SECONDS = 300.0  # before the verdict; further back where less than ENOUGH_SECONDS of that was sampled
ENOUGH_SECONDS = 3.0
MOST_INTERVALS = 600  # of one card: the newest
MOST_RANKS = 16
LONGEST_INTERVAL_SECONDS = 3.0  # of a card without its units: two looks further apart say nothing of what was between
REACH_SECONDS = 0.1  # before and after a sample for which it stands at most: records have 20 a second
KNOWN = 0.6  # of an interval must be known
# A look tells of what was some time before: counters are refreshed every 100 ms (GPM) or 200 ms, and 0.10 to 0.15 s fitted best on
# an H200. Which of these it is, the intervals themselves show.
LATE_SECONDS = (0.0, 0.05, 0.1, 0.15, 0.2)
CLEARLY = 0.05  # so much more must be explained before looks are taken to be late


@dataclass(frozen=True)
class Awaited:
    """One stack, innermost frame first: for so many seconds the card idled while the thread was there, of so many in all."""

    rank: int | None
    frames: tuple[r.Frame, ...]
    idle_seconds: float
    seconds: float


@dataclass(frozen=True)
class OffGpu:
    """What cards waited for. ``measured``: seconds of the looks that stacks were sampled in; ``idle``: without a kernel, of those.

    all_measured, all_idle: the same of all looks up to the verdict, sampled or not. source: gpm, or nvml (utilisation).
    told_apart: share of the differences between intervals that the lines explain, 0 to 1.
    """

    awaited: tuple[Awaited, ...]
    measured_seconds: float
    idle_seconds: float
    all_measured_seconds: float
    all_idle_seconds: float
    source: str
    cards: tuple[int, ...]
    told_apart: float

    @property
    def idle_share(self) -> float:
        """Of the time that stacks were sampled in."""
        return self.idle_seconds / self.measured_seconds if self.measured_seconds else 0.0

    @property
    def all_idle_share(self) -> float:
        """Of all the time that the cards were looked at."""
        return self.all_idle_seconds / self.all_measured_seconds if self.all_measured_seconds else 0.0


@dataclass(frozen=True)
class _Interval:
    begun: float
    ended: float
    idle: float  # share of it

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended - self.begun

    def earlier(self, seconds: float) -> "_Interval":
        """The same, of some time before."""
        return _Interval(self.begun - seconds, self.ended - seconds, self.idle)


@dataclass(frozen=True)
class _Cell:
    """One sample and the time that it stands for: half way to its neighbours, and not far."""

    begun: float
    ended: float
    frames: tuple[r.Frame, ...]


def off_gpu(case: Case) -> OffGpu | None:
    """Of all ranks whose card is known; None where no card was looked at while stacks were sampled."""
    watched = [seen for rank in case.ranks[:MOST_RANKS] if (seen := _watched(case, rank)) is not None]
    late = next((late for one in watched if (late := one.late()) is not None), LATE_SECONDS[0])
    parts = [part for one in watched if (part := one.part(case, late)) is not None]
    if not parts:
        return None
    return OffGpu(
        awaited=tuple(sorted((one for part in parts for one in part.awaited), key=lambda one: -one.idle_seconds)),
        measured_seconds=sum(part.measured_seconds for part in parts),
        idle_seconds=sum(part.idle_seconds for part in parts),
        all_measured_seconds=sum(part.all_measured_seconds for part in parts),
        all_idle_seconds=sum(part.all_idle_seconds for part in parts),
        source=parts[0].source,
        cards=tuple(sorted({card for part in parts for card in part.cards})),
        told_apart=sum(part.told_apart * part.measured_seconds for part in parts)
        / sum(part.measured_seconds for part in parts),
    )


@dataclass(frozen=True)
class _Watched:
    """A rank whose card is known: the looks at that card, those of them that are told apart, and what was sampled then."""

    rank: int | None
    uuid: str
    intervals: Sequence[_Interval]
    source: str
    chosen: Sequence[_Interval]
    cells: Sequence[_Cell]

    def late(self) -> float | None:
        """How late looks are; None where nothing tells. One rank may speak for all: the looks come from one driver."""
        fitted = {seconds: _Fit.of(self.chosen, self.cells, seconds) for seconds in LATE_SECONDS}
        if not any(one.mixed for one in fitted.values()):
            return None
        best, first = max(fitted, key=lambda seconds: fitted[seconds].told_apart), LATE_SECONDS[0]
        return best if fitted[best].told_apart >= fitted[first].told_apart + CLEARLY else first

    def part(self, case: Case, late: float) -> OffGpu | None:
        """What its card waited for; None where none of the looks falls together with stacks."""
        fit = _Fit.of(self.chosen, self.cells, late)
        if not fit.mixed:
            return None
        index = card_index(case.history, self.uuid)
        return OffGpu(
            awaited=tuple(fit.awaited(self.rank)),
            measured_seconds=sum(one.seconds for one in fit.mixed),
            idle_seconds=sum(one.idle_seconds for one in fit.mixed),
            all_measured_seconds=sum(one.seconds for one in self.intervals),
            all_idle_seconds=sum(one.idle * one.seconds for one in self.intervals),
            source=self.source,
            cards=() if index is None else (index,),
            told_apart=fit.told_apart,
        )


def _watched(case: Case, rank: Member) -> _Watched | None:
    cards = cards_of(case.history, rank.pid)
    stacks = case.history.series(r.Stack, rank.pid, case.progress[rank.pid].thread)
    if not cards.certain or not stacks:
        return None
    intervals, source = _intervals(case.history, cards.uuids[0])
    return _Watched(rank.rank, cards.uuids[0], intervals, source, *_chosen(intervals, stacks, case.at))


@dataclass(frozen=True)
class _Fit:
    """What the intervals say of each line, if they were of that time."""

    mixed: tuple[Mixed, ...]
    within: Mapping[Hashable, Mapping[tuple[r.Frame, ...], float]]  # seconds by line and stack
    idle: Mapping[Hashable, float]
    told_apart: float

    @classmethod
    def of(cls, chosen: Sequence[_Interval], cells: Sequence[_Cell], late: float) -> "_Fit":
        """Look up what was sampled in each interval, if the looks are so late, and hand its idle time out."""
        ends = [cell.ended for cell in cells]
        mixed: list[Mixed] = []
        within: dict[Hashable, dict[tuple[r.Frame, ...], float]] = defaultdict(lambda: defaultdict(float))
        for one in chosen:
            parts = _overlaps(one.earlier(late), cells, ends)
            seen = sum(part for _, part in parts)
            if seen < KNOWN * one.seconds:
                continue
            shares: dict[Hashable, float] = defaultdict(float)
            for cell, part in parts:
                key = _line(cell.frames)
                shares[key] += part / seen
                within[key][cell.frames] += one.seconds * part / seen
            mixed.append(Mixed(one.seconds, one.idle * one.seconds, shares))
        return cls(tuple(mixed), within, *explained(mixed))

    def awaited(self, rank: int | None) -> Iterator[Awaited]:
        """The idle time of each line, by the stacks in which it was seen."""
        for key, by_stack in self.within.items():
            total = sum(by_stack.values())
            for frames, part in by_stack.items():
                yield Awaited(rank, frames, self.idle[key] * part / total, part)


def _intervals(history: History, uuid: str) -> tuple[list[_Interval], str]:
    """Every look at a card as the time that it tells about, none twice."""
    found: list[_Interval] = []
    for look in card_looks(history, uuid):
        if look.reading.graphics is not None:
            begun = max(look.at - look.reading.interval_seconds, found[-1].ended if found else 0.0)
            if look.at > begun:
                found.append(_Interval(begun, look.at, 1.0 - min(1.0, look.reading.graphics)))
    if found:
        return found, "gpm"
    before: float | None = None
    for sample in history.series(r.GpuSample, uuid):
        if sample.reading.utilisation is None:
            continue
        if before is not None and 0.0 < sample.at - before <= LONGEST_INTERVAL_SECONDS:
            found.append(_Interval(before, sample.at, 1.0 - sample.reading.utilisation))
        before = sample.at
    return found, "nvml"


def _cells(stacks: Iterable[Seen[r.Stack]]) -> list[_Cell]:
    """Every single sample (a record says how many in a row showed the same) with the time around it that it stands for."""
    samples = []
    for one in stacks:
        count, span = one.reading.samples, one.reading.span_seconds
        for number in range(count):
            # The first and the last of a run are at its ends.
            ago = span * (1 - number / (count - 1)) if count > 1 else span / 2
            samples.append((one.at - ago, one.reading.frames))
    samples.sort(key=lambda sample: sample[0])
    cells = []
    for place, (at, frames) in enumerate(samples):
        before = (at + samples[place - 1][0]) / 2 if place else at - REACH_SECONDS
        after = (at + samples[place + 1][0]) / 2 if place + 1 < len(samples) else at + REACH_SECONDS
        cells.append(_Cell(max(before, at - REACH_SECONDS), min(after, at + REACH_SECONDS), frames))
    return cells


def _chosen(
    intervals: Sequence[_Interval], stacks: Sequence[Seen[r.Stack]], at: float
) -> tuple[list[_Interval], list[_Cell]]:
    """The newest intervals of which most is known, with their samples: lately if that is enough, else ever."""
    for since in (at - RECENT_SECONDS, 0.0):
        cells = _cells(one for one in stacks if one.at >= since)
        ends = [cell.ended for cell in cells]
        known = [
            one
            for one in intervals
            if one.ended >= since and sum(part for _, part in _overlaps(one, cells, ends)) >= KNOWN * one.seconds
        ]
        if sum(one.seconds for one in known) >= ENOUGH_SECONDS:
            break
    return known[-MOST_INTERVALS:], cells


def _overlaps(one: _Interval, cells: Sequence[_Cell], ends: Sequence[float]) -> list[tuple[_Cell, float]]:
    """The samples that tell of an interval, each with the seconds of it that it stands for."""
    found = []
    for place in range(bisect.bisect_right(ends, one.begun), len(cells)):
        cell = cells[place]
        if cell.begun >= one.ended:
            break
        found.append((cell, min(cell.ended, one.ended) - max(cell.begun, one.begun)))
    return found


def _line(frames: tuple[r.Frame, ...]) -> Hashable:
    """What tells two phases apart: the program's own line, and the function that it has called from there."""
    for place, frame in enumerate(frames):
        if is_user(frame):
            called = short_name(frames[place - 1].function) if place else ""
            return frame.file, frame.line, called
    return (frames[0].file, short_name(frames[0].function), "") if frames else ("", 0, "")
