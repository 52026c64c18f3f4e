"""``compare(a, b)``: all differences between two recorded runs, and how certain each one is."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from perfwatch.comparison.bootstrap import (
    Blocks,
    Interval,
    Windows,
    change_of_quantile,
    change_of_rate,
    difference_of_ratios,
    interval_of_quantile,
    interval_of_rate,
    rate_windows,
)
from perfwatch.comparison.conditions import Condition, command_difference, conditions, differences
from perfwatch.comparison.measures import Measure, measures
from perfwatch.comparison.steps import StepTimes, step_times
from perfwatch.postmortem import diagnose, judge
from perfwatch.recording.recording import Recording
from perfwatch.report.moment import told_first
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, quantile
from perfwatch.triage.questions import ended_on_request
from perfwatch.verdict import Verdict

SCHEMA = "perfwatch.comparison/1"
WARM_UP_STEPS = 10  # compilation, autotuning, the first epoch of a cache
QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))
NO_STEPS = "no step times after the warm-up: a run whose steps can be counted is started with perfwatch run"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. Empty and None: not known. state and what follows: by today's rules, and as ``perfwatch
    replay`` tells it. lived: the state and cause while it ran, where that is told beside its end."""

    session: str
    created: float  # unix time
    seconds: float  # watched
    command: tuple[str, ...]
    steps: int = 0  # counted, of the rank that counted the most
    timed_steps: int = 0  # without the warm-up
    state: str
    cause: str | None
    confidence: float
    summary: str
    lived: tuple[str, str | None] | None = None
    failed: str = ""  # that it crashed, was killed or hung; being asked to end (SIGTERM, SIGINT) is no failure
    missing: tuple[str, ...] = ()  # what this recording does not hold


class RateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Steps a second between the end of the warm-up and the last step, pauses included. change: B against A, -0.05 is 5 % slower."""

    a_per_second: float
    b_per_second: float
    change: float
    a_interval: Interval | None = None
    b_interval: Interval | None = None
    change_interval: Interval | None = None


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One quantile of the step times. change: B against A, 0.05 is 5 % slower. Intervals cover 95 %; None: too few steps."""

    quantile: str
    a_seconds: float
    b_seconds: float
    change: float
    a_interval: Interval | None = None
    b_interval: Interval | None = None
    change_interval: Interval | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both runs. interval: of B minus A, covers 95 %; None: seen too seldom. sure: the interval excludes zero."""

    name: str
    group: str
    unit: str
    a: float | None
    b: float | None
    interval: Interval | None = None
    sure: bool = False


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run B against run A. unlike: conditions in which the two differ, those that explain a difference by themselves first."""

    schema: str = SCHEMA
    a: Side
    b: Side
    unlike: tuple[Condition, ...] = ()
    rate: RateDifference | None = None  # decides; the quantiles of the step times say where it comes from
    steps: tuple[StepDifference, ...] = ()
    differences: tuple[Difference, ...] = ()
    verdict_changed: bool = False


@dataclass(frozen=True)
class _Judged:
    verdict: Verdict


class _Run:
    """One recording, read once."""

    def __init__(self, name: str, recording: Recording, warm_up: int) -> None:
        self.name, self.recording = name, recording
        self.case = Case(History(recording.records, recording.end), recording.session, recording.events)
        self.times: StepTimes | None = step_times(self.case.history, self.case.job.ranks, warm_up)
        timed = self.times is not None and bool(self.times.values)
        first, last = (self.times.first_at, self.times.last_at) if self.times and timed else (0.0, recording.end)
        self.measures = {(one.group, one.name): one for one in measures(self.case, first, last)}
        clock = self.measures.get(("GPU", "SM clock"))
        self.conditions = conditions(self.case, clock.windows if clock else None)

    def side(self) -> Side:
        told, lived = told_first(self.recording, self._judged)
        verdict = told.verdict
        return Side(
            session=self.name,
            created=self.recording.session.created,
            seconds=round(self.recording.end, 3),
            command=self.recording.session.command,
            steps=self.times.counted if self.times else 0,
            timed_steps=len(self.times.values) if self.times else 0,
            state=verdict.state,
            cause=verdict.cause,
            confidence=verdict.confidence,
            summary=verdict.summary,
            lived=(lived.state, lived.cause) if lived is not None else None,
            failed=next((one.summary for one in (verdict, self._end) if self._fails(one)), ""),
            missing=tuple(self._missing()),
        )

    def _judged(self, at: float) -> _Judged:
        return _Judged(self._end if at == self.recording.end else diagnose(self.recording.until(at), at))

    @cached_property
    def _end(self) -> Verdict:
        return judge(self.case)

    def _fails(self, verdict: Verdict) -> bool:
        if verdict.cause == "killed":
            return not ended_on_request(self.case)
        return verdict.state == "hung" or (verdict.state == "gone" and verdict.cause != "finished")

    def _missing(self) -> list[str]:
        return [
            *(["it is empty: nothing was read"] if not self.recording.records else []),
            *([NO_STEPS] if self.times is None or not self.times.values else []),
            *([f"left out: {self.recording.left_out}"] if self.recording.left_out else []),
        ]


def compare(
    a: Recording, b: Recording, names: tuple[str, str] = ("A", "B"), warm_up: int = WARM_UP_STEPS
) -> Comparison:
    """Hold one recording against another.

    Args:
        a: what is compared against (the baseline).
        b: what is compared.
        names: where they lie, for the report.
        warm_up: first steps of each process that are left out.
    """
    one, other = _Run(names[0], a, warm_up), _Run(names[1], b, warm_up)
    sides = one.side(), other.side()
    return Comparison(
        a=sides[0],
        b=sides[1],
        unlike=(*command_difference(a.session, b.session), *differences(one.conditions, other.conditions)),
        rate=_rate(one.times, other.times),
        steps=_steps(one.times, other.times),
        differences=_differences(one.measures, other.measures),
        verdict_changed=len({(side.state, side.cause) for side in sides}) > 1
        or (all(side.lived is not None and not side.failed for side in sides) and sides[0].lived != sides[1].lived),
    )


def sure_sign(interval: Interval | None) -> int:
    """1 for a change that is surely above zero, -1 below, 0 where neither is certain."""
    return 0 if interval is None else (interval[0] > 0.0) - (interval[1] < 0.0)


def disagreement(both: Comparison) -> str:
    """What to say where the median step tells another story than steps a second; empty where they agree."""
    if both.rate is None or not both.steps:
        return ""
    rate, median = sure_sign(both.rate.change_interval), -sure_sign(both.steps[0].change_interval)
    names = {1: "faster", -1: "slower", 0: ""}
    if rate and median == -rate:
        return (
            f"the median step of B is {names[median]}, but B makes {'more' if rate > 0 else 'fewer'} steps a second: "
            f"{'A' if rate > 0 else 'B'} loses time in a few long steps or pauses. Steps a second decides"
        )
    if rate and not median and _fits(both.steps[0].change_interval, 1.0 / (1.0 + both.rate.change) - 1.0):
        return f"B is {names[rate]}; whether its median step is too is not certain with so few steps: longer runs tell"
    if rate and not median:
        return (
            f"B is {names[rate]}, but its median step is not {names[rate]} by as much: the difference is in a few long steps or "
            "pauses, as the higher percentiles show"
        )
    if median and not rate:
        return (
            f"the median step of B is {names[median]}, but steps a second does not show it for certain: a few long steps or "
            "pauses outweigh it. Steps a second decides; longer runs tell"
        )
    return ""


def _fits(interval: Interval | None, change: float) -> bool:
    """True if a change may lie in an interval; in an unknown one any may."""
    return interval is None or interval[0] <= change <= interval[1]


def _rate(a: StepTimes | None, b: StepTimes | None) -> RateDifference | None:
    windows_a, windows_b = (rate_windows(times.clock if times else ()) for times in (a, b))
    value_a, value_b = windows_a.value, windows_b.value
    if not value_a or not value_b:
        return None
    return RateDifference(
        a_per_second=value_a,
        b_per_second=value_b,
        change=value_b / value_a - 1.0,
        a_interval=interval_of_rate(windows_a),
        b_interval=interval_of_rate(windows_b),
        change_interval=change_of_rate(windows_a, windows_b),
    )


def _steps(a: StepTimes | None, b: StepTimes | None) -> tuple[StepDifference, ...]:
    if a is None or b is None or not a.values or not b.values:
        return ()
    blocks_a, blocks_b = Blocks(a.values), Blocks(b.values)
    found = []
    for name, share in QUANTILES:
        value_a, value_b = quantile(a.values, share) or 0.0, quantile(b.values, share) or 0.0
        found.append(
            StepDifference(
                quantile=name,
                a_seconds=value_a,
                b_seconds=value_b,
                change=value_b / value_a - 1.0,
                a_interval=interval_of_quantile(share, blocks_a),
                b_interval=interval_of_quantile(share, blocks_b),
                change_interval=change_of_quantile(share, blocks_a, blocks_b),
            )
        )
    return tuple(found)


def _differences(a: dict[tuple[str, str], Measure], b: dict[tuple[str, str], Measure]) -> tuple[Difference, ...]:
    nothing = Windows(())
    found = []
    for key in dict.fromkeys((*a, *b)):
        known = a.get(key) or b[key]
        left, right = (run[key].windows if key in run else nothing for run in (a, b))
        if known.group == "phase":  # seen in one run alone: the other was looked at too, and was never there
            left, right = left if left.parts else _never(a, left), right if right.parts else _never(b, right)
        interval = difference_of_ratios(left, right)
        found.append(
            Difference(
                name=known.name,
                group=known.group,
                unit=known.unit,
                a=left.value,
                b=right.value,
                interval=interval,
                sure=sure_sign(interval) != 0,
            )
        )
    return tuple(found)


def _never(run: dict[tuple[str, str], Measure], otherwise: Windows) -> Windows:
    """The windows in which stacks of a run were seen, with nothing in them."""
    seen = next((one.windows for (group, _), one in run.items() if group == "phase"), otherwise)
    return Windows(tuple((0.0, part[1]) for part in seen.parts))
