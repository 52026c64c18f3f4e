"""What is handed to a reader: the shares of a step, at most three levers, and what could not be seen."""

import math
import shlex
from pathlib import Path

import msgspec

from perfwatch.headroom.facts import Facts, Seen
from perfwatch.headroom.gain import times_range
from perfwatch.headroom.levers import LEVERS, Lever
from perfwatch.headroom.shares import rates, shares
from perfwatch.headroom.step import Steps
from perfwatch.text import json_text

MOST = 3
SCHEMA = "perfwatch.headroom/1"
LEAST_TIMES = 1.03  # in the middle of the range: below it the profiler's own noise is as large
UNKNOWN_CARD = 0.5  # what is left of a gain where the card is not in the tables
UNSURE = 0.25  # what counts of the least gain of a change that depends on what the trace does not say
CHECK = "perfwatch run the program before and after, then perfwatch compare BEFORE AFTER"


class Advice(msgspec.Struct, frozen=True):
    """One lever for this run. ``times``: how many times as fast a step would be, at least and at most."""

    lever: str
    title: str
    evidence: str
    times: tuple[float, float]
    cost: str
    change: str
    where: str
    source: str
    excludes: tuple[str, ...]
    check: str = CHECK
    unsure: str = ""


class Part(msgspec.Struct, frozen=True):
    """A share of a step."""

    what: str
    share: float
    seconds: float
    family: str = ""
    part: str = ""


class Roof(msgspec.Struct, frozen=True):
    """What products of one type achieve; ``of_peak``: of the data sheet's rate for that type, None where it is not known."""

    family: str
    type: str
    tflops: float
    of_peak: float | None
    seconds: float


class Slow(msgspec.Struct, frozen=True):
    """Why the run is slow, as triage judges it.

    ``share``: of the time, that triage attributes to the cause; ``times``: how many times as fast a step is without it; None: unknown.
    """

    cause: str
    summary: str
    confidence: float
    share: float | None
    times: tuple[float, float] | None
    next: tuple[str, ...]


class Headroom(msgspec.Struct, frozen=True):
    """What a run could gain. ``missing``: what the source does not hold, and what would bring it.
    ``next``: measures the longest kernels against both roofs, in a second run. ``judged``: False for a job that makes no steps.
    ``slow``: what comes before any lever; None of a run that is not slow, and of a trace alone."""

    source: str
    seen_from: str  # trace, or counters and stacks
    card: str
    steps: int
    step_seconds: float | None
    traced_step_seconds: float | None
    shares: tuple[Part, ...]
    roofs: tuple[Roof, ...]
    levers: tuple[Advice, ...]
    missing: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    judged: bool = True
    slow: Slow | None = None
    schema: str = SCHEMA


def advise(steps: Steps, source: Path, stacks: Steps | None = None) -> Headroom:
    """The headroom of the steps of a trace.

    Args:
        source: the file, as it was named.
        stacks: a second window of the same run with Python stacks, for the lines alone: stacks slow what they are taken of.
    """
    return Headroom(
        source=str(source),
        seen_from="trace",
        card=steps.card.name,
        steps=steps.count if steps.counted else 0,
        step_seconds=round(steps.seconds, 6),
        traced_step_seconds=round(steps.traced_seconds, 6),
        shares=tuple(
            Part(one.what, round(one.share, 6), round(one.seconds, 7), one.family, one.part) for one in shares(steps)
        ),
        roofs=tuple(
            Roof(
                one.family,
                one.type,
                round(one.tflops, 1),
                None if one.of_peak is None else round(one.of_peak, 3),
                round(one.seconds, 6),
            )
            for one in rates(steps)
        ),
        levers=levers(Facts(steps), None if stacks is None else Facts(stacks)),
        missing=_missing(steps, stacks),
        next=(f"perfwatch ncu --from {shlex.quote(str(source))} --top 5 -- COMMAND",),
    )


def levers(facts: Facts, stacks: Facts | None = None, most: int = MOST) -> tuple[Advice, ...]:
    """The largest, by the middle of what they would bring."""
    found: list[Advice] = []
    for lever in LEVERS:
        seen = lever.judge(facts)
        if seen is None:
            continue
        low, high = times_range(facts.budget, seen.least, seen.most)
        if not facts.steps.card.name:
            low, high = 1 + (low - 1) * UNKNOWN_CARD, 1 + (high - 1) * UNKNOWN_CARD
        low = min(max(1.0, low), high)
        advice = _advice(lever, seen, low, high)
        if middle(advice) >= LEAST_TIMES:
            lines = lever.judge(stacks) if stacks is not None and not advice.where else None
            found.append(msgspec.structs.replace(advice, where=lines.where) if lines is not None else advice)
    found.sort(key=_rank, reverse=True)
    return tuple(found[:most])


def middle(advice: Advice) -> float:
    """The middle of what a lever would bring, as levers are ranked."""
    return math.sqrt(advice.times[0] * advice.times[1])


def _rank(advice: Advice) -> float:
    """The middle; of what depends on things that the trace does not say, a part of the least: a change that is sure comes first."""
    return 1 + UNSURE * (advice.times[0] - 1) if advice.unsure else middle(advice)


def _advice(lever: Lever, seen: Seen, low: float, high: float) -> Advice:
    return Advice(
        lever=lever.name,
        title=lever.title,
        evidence=seen.evidence,
        times=(round(low, 2), round(high, 2)),
        cost=lever.cost,
        change=lever.change,
        where=seen.where,
        source=lever.source,
        excludes=lever.excludes,
        unsure=seen.unsure,
    )


def _missing(steps: Steps, stacks: Steps | None) -> tuple[str, ...]:
    found = []
    if not steps.has_shapes:
        found.append(
            "shapes: attention, layouts and sizes of products cannot be judged (perfwatch capture torch --shapes)"
        )
    if not (steps.has_stacks or (stacks is not None and stacks.has_stacks)):
        found.append("stacks: no lines of the program (perfwatch capture torch --stacks)")
    if steps.usual_seconds is None:
        found.append("the step's time without the profiler: the gaps hold what it costs itself (--step-seconds S)")
    if not steps.counted:
        found.append("the optimizer's steps: the window as a whole is the unit")
    if not steps.card.name:
        found.append("the card: it is not named in the trace, and every gain is halved")
    if steps.peak_bytes is None:
        found.append("the memory in use: levers that need memory are unsure")
    return tuple(found)


def as_json(headroom: Headroom) -> str:
    """One object."""
    return json_text(headroom)
