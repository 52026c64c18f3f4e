"""Whether a rank prepares in Python of its own, before it has ever trained: a vocabulary, an index, a table in memory."""

from perfwatch.triage.case import Case
from perfwatch.triage.job import Member
from perfwatch.triage.loops import counts
from perfwatch.triage.memory import quiet
from perfwatch.triage.profile import TRAINING_TAGS

SAMPLES = 60
LINES = 2
UNSURE = 0.55  # of a hang, below what makes a verdict: after the patience nothing is other than before


def prepares(case: Case, rank: Member) -> bool:
    """Whether it turns in a loop of Python that has an end, at several lines, and was never seen at training."""
    end = case.chains[rank.pid].end
    ever = case.profile(rank)
    return (
        end.kind == "python"  # one long call is ``computing_on_host``, and who waits prepares nothing
        and ever.samples >= SAMPLES
        and len(ever.lines()) >= LINES
        and not ever.seen(*TRAINING_TAGS)
        and counts(case.history, end.node)
        and quiet(case, rank).seconds == 0.0  # what remembers training has begun it
    )
