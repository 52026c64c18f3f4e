"""Whether an evaluation lasts too long to be called one: a benign phase comes to its end."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.moving.unleft import unleft
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.verdict import Finding

LONG = 10.0  # times the patience, or thirty times the longest step: until then it may well be over soon
OVERLONG = 0.65  # then it still looks like one, and may go through what has no end


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
