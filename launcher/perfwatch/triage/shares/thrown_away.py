"""Batches that are taken and dropped: the loop that made steps throws each of them away.

From outside it looks like slow loading, for the training thread waits for data nearly all of the time. What tells them apart: so many
batches were taken that the steps which they should have led to would have been seen, or counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import python_threads, tags_seen
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.starving import awaits_data
from perfwatch.triage.shares.thresholds import CERTAIN, ENOUGH_SAMPLES, HIGH, MEDIUM, MOSTLY
from perfwatch.triage.shares.training import FEW_STEPS, made_steps, steps_an_optimizer
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import any_tag, inside, tags, user_frames
from perfwatch_probes import readings as r

UPDATES = ("backward", "optimizer", "scaler")
PASSES = ("forward", *UPDATES)
ELSEWHERE = ("save", "import", "compile", "exit", "collective", "rendezvous", "loader_start", "loader_stop")
STEP_SECONDS = 0.001  # forward, backward and update of the smallest model; measured 0.8 ms for two layers of 64
CAUTION = 0.5  # of the time that the passes for a batch were seen to take: batches are counted by wake-ups, and there are more of these
FEW_PASSES = 5  # samples, that tell how long they take
DUE_SAMPLES, DUE_AFTER_STEPS = 3.0, 8.0  # of steps that last no longer than that: none is seen by chance with e**-3


@dataclass(frozen=True)
class Discarded:
    """The batches since the last step."""

    batches: int  # about
    seconds: float
    line: r.Frame  # of the loop: where it discards them, if it was met there
    seen: Profile
    due: float  # samples of steps, had these been made
    sure: float  # that none is made any more; 0: not yet


def discarded(case: Case, rank: Member) -> Discarded | None:
    """What a rank has taken from its loader since its last step, if so much of it led to no step that none is made any more."""
    found = _taken(case, rank)
    return found if found is not None and found.sure else None


def unfollowed(case: Case, rank: Member) -> bool:
    """True if batches were taken and no step was seen that should have been, if any were made."""
    found = _taken(case, rank)
    return found is not None and found.due >= DUE_SAMPLES


def _taken(case: Case, rank: Member) -> Discarded | None:
    return case.history.once(("thrown away", rank.pid), lambda: _find_taken(case, rank))


def _find_taken(case: Case, rank: Member) -> Discarded | None:
    steps, ever = case.steps(rank), case.profile(rank).sights
    counted = steps is not None and steps.ago_seconds is not None and steps.count >= FEW_STEPS
    if counted and steps is not None and (steps.ago_seconds or 0.0) < temporal(case):
        return None
    last = max((n for n, one in enumerate(ever) if any_tag(tags(one.reading), *PASSES)), default=-1)
    since = Profile(ever[last + 1 :], 0.0)
    if not since.sights or since.share_where(awaits_data) < MOSTLY:
        return None
    began = since.sights[0].at - since.sights[0].reading.span_seconds
    seconds = (steps.ago_seconds or 0.0) if counted and steps is not None else case.at - began
    loop = _loop(since)
    if loop is None or any(any_tag(tags(one.reading), "import", "compile") for one in since.sights):
        return None
    batches = _ordered(case, rank, began, case.at)
    each = max(STEP_SECONDS, CAUTION * _passes_seconds(case, rank, ever[: last + 1]))
    due = each * batches * since.samples / max(case.at - began, STEP_SECONDS)
    before = made_steps(case, rank, loop)
    before = any(_within(one, loop) for one in ever[: last + 1]) if before is None else before
    sure = 0.0
    if counted and before:
        sure = CERTAIN if batches >= ENOUGH_SAMPLES else 0.0
    elif before:
        sure = HIGH if seconds >= temporal(case) and due >= DUE_AFTER_STEPS else 0.0
    elif steps_an_optimizer(line_of(case.history, loop)):
        sure = MEDIUM if due >= DUE_SAMPLES else 0.0
    return Discarded(batches, seconds, _discards_at(since, loop) or loop, since, due, sure)


def _loop(since: Profile) -> r.Frame | None:
    """The program's own line at which data is mostly waited for."""
    lines: Counter[r.Frame] = Counter()
    for one in since.sights:
        frames = user_frames(one.reading) if awaits_data(one.reading) else ()
        lines.update(dict.fromkeys(frames[:1], one.reading.samples))
    return lines.most_common(1)[0][0] if lines else None


def _within(one: Seen[r.Stack], loop: r.Frame) -> bool:
    """True if a stack in a pass that an update follows was called from the function of that loop."""
    if not any_tag(tags(one.reading), *UPDATES):
        return False
    return inside(loop, one.reading)


def _discards_at(since: Profile, loop: r.Frame) -> r.Frame | None:
    """Where the loop is met with a batch in its hands."""
    lines: Counter[r.Frame] = Counter()
    for one in since.sights:
        if any_tag(tags(one.reading), "loader", *ELSEWHERE) or awaits_data(one.reading):
            continue
        here = [
            frame for frame in user_frames(one.reading) if (frame.function, frame.file) == (loop.function, loop.file)
        ]
        lines.update(dict.fromkeys(here[:1], one.reading.samples))
    return lines.most_common(1)[0][0] if lines else None


def _passes_seconds(case: Case, rank: Member, before: Sequence[Seen[r.Stack]]) -> float:
    """How long the passes of a step took for each batch that was taken, while they were seen; 0 where that is not known.

    Where most batches were thrown away all along, and few trained on, that is little.
    """
    passes = [n for n, one in enumerate(before) if any_tag(tags(one.reading), *PASSES)]
    if len(passes) < FEW_PASSES:
        return 0.0
    seen = Profile(tuple(before[passes[0] : passes[-1] + 1]), 0.0)
    begin, end = seen.sights[0].at, seen.sights[-1].at
    batches = _ordered(case, rank, begin, end)
    return seen.share(*PASSES) * (end - begin) / batches if batches >= ENOUGH_SAMPLES else 0.0


def _ordered(case: Case, rank: Member, begin: float, end: float) -> int:
    """About how many batches were ordered: for each that is taken a thread that feeds a worker's queue wakes up once."""
    woken = 0
    for tid in python_threads(case.history, rank.pid):
        if "feeder" in tags_seen(case.history, rank.pid, tid):
            looks = [one.reading for one in case.history.series(r.Thread, rank.pid, tid) if begin <= one.at <= end]
            counts = [one.voluntary_switches for one in looks if one.voluntary_switches is not None]
            woken += counts[-1] - counts[0] if counts else 0
    return woken
