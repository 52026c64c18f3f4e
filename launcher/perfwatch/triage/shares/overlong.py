"""Whether what a rank is busy with may have no end: a benign phase comes to it, and is left then."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.moving.unleft import unleft
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.words.code import line_of, names
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame

LONG = 10.0  # times the patience, or thirty times the longest step: until then it may well be over soon
OVERLONG = 0.65  # then it still looks like one, and may go through what has no end
TRAINS = frozenset("backward step zero_grad forward fit train train_step training_step".split())


def in_time(case: Case, rank: Member, found: Finding) -> Finding:
    """The finding, less sure where no step came for long; a mere note where it does not leave a loop that need not end."""
    steps, loop = case.steps(rank), unleft(case, rank)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if loop is not None and loop.doubted:
        return msgspec.structs.replace(found, confidence=min(NOTED, found.confidence))
    if ago < LONG * temporal(case):
        return found
    said = f"{found.summary}; no step for {ago / 60:.0f} min: does what it goes through have an end?"
    return msgspec.structs.replace(found, confidence=min(OVERLONG, found.confidence), summary=said)


def repeated(case: Case, frame: Frame | None, confidence: float) -> float:
    """The confidence in a save or a download, less where its line turns in a ``while`` loop in which nothing trains.

    It may be tried again and again, and fail or be found wanting each time.
    """
    line = line_of(case.history, frame)
    alone = line is not None and line.loops[:1] == ("while",) and not line.calls_unnamed
    return min(OVERLONG, confidence) if alone and line and names(line.loop_calls).isdisjoint(TRAINS) else confidence
