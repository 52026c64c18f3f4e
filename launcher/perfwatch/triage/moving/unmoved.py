"""Whether what was asked a while ago still holds: nothing that could have changed it has moved since.

A group's counts change only where a training thread makes calls, or a card comes to the end of one. Both are looked at far more
often than the groups are asked, so their silence makes an answer last. It is about what was seen: a rank that nobody has
looked at since, or cannot look at, ends it.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import TORN_SHARE, moves, stack_key
from perfwatch_probes import readings as r

GAP_SECONDS = 20.0  # between two looks at a thread: after a hang was told, its stack is looked at every 15 s
AT_WORK = ("work", "wait")  # what a card does whose kernels come and go


@dataclass
class _Known:
    """What was found out so far: asked about the dumps of thousands of ranks, each of its own moment, it is not asked anew."""

    since: float = inf  # the earliest moment since which nothing has moved
    mover: int | None = None  # the rank that had moved, last time


def unmoved_since(case: Case, at: float) -> bool:
    """Whether every rank of the job is here, was looked at since that moment, and has neither moved nor made a step.

    Since an earlier moment is more than since a later one, and who has moved since one has mostly done so since the next.
    """
    if not case.ranks or not case.job.covered:
        return False
    known = case.history.once(("unmoved",), _Known)
    if at >= known.since:
        return True
    first = [known.mover] if known.mover is not None else []
    known.mover = next((pid for pid in (*first, *(one.pid for one in case.ranks)) if not _unmoved(case, pid, at)), None)
    if known.mover is None:
        known.since = at
    return known.mover is None


def _unmoved(case: Case, pid: int, at: float) -> bool:
    progress = case.progress[pid]
    steps, tid = progress.steps, progress.thread
    if progress.kind == "moving" or (
        steps is not None and steps.ago_seconds is not None and case.at - steps.ago_seconds > at
    ):
        return False
    if any((card.kind in AT_WORK and not card.polls) or card.computes for card in regimes(case.history, pid)):
        return False
    stacks = [one for one in case.history.series(r.Stack, pid, tid, seconds=case.at - at) if one.reading.frames]
    weights: Counter[tuple[tuple[str, str, int], ...]] = Counter()
    for one in stacks:
        weights[stack_key(one.reading)] += one.reading.samples
    total = sum(weights.values())
    if total - max(weights.values(), default=0) > TORN_SHARE * total:
        return False  # all but one together: of many lines in turn each alone is rare
    threads = case.history.series(r.Thread, pid, tid, seconds=case.at - at)
    if threads and _sleeps(threads[-1].reading):
        moved = moves(case.history, pid, tid).ago_seconds
        if moved is not None and case.at - moved > at:
            return False
    looks = sorted((at, *(one.at for one in stacks), *(one.at for one in threads), case.at))
    return len(looks) > 2 and all(later - earlier <= GAP_SECONDS for earlier, later in pairwise(looks))


def _sleeps(thread: r.Thread) -> bool:
    """Of one that spins for its card, the time that it runs says nothing; of one that sleeps, that it went on."""
    return thread.state != "R" and thread.wait is not None
