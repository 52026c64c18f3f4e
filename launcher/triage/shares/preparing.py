"""Whether a rank prepares in Python of its own, before it has ever trained: a vocabulary, an index, a table in memory."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.loops import counts, turning
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import TRAINING_TAGS

SAMPLES = 60
LINES = 2
UNSURE = 0.55  # of a hang, below what makes a verdict: after the patience nothing is other than before


def prepares(case: Case, rank: Member) -> bool:
    """Whether it turns in a loop of Python that has an end, at several lines, and was never seen at training."""
    return has_not_trained(case, rank) and counts(case.history, case.chains[rank.pid].end.node)


def goes_through_rounds(case: Case, rank: Member) -> bool:
    """Whether it has never trained, and turns in loops that have an end within one that waits for a condition.

    A vocabulary is merged in rounds, each over all of the words: a round ends, and nobody knows how many there will be.
    """
    loops = turning(case.history, case.chains[rank.pid].end.node)
    return loops[:1] == ("for",) and "while" in loops and has_not_trained(case, rank)


def has_not_trained(case: Case, rank: Member) -> bool:
    """Whether it runs Python at several lines, was never seen at training, and nothing remembers any."""
    ever = case.profile(rank)
    return (
        # One long call is ``computing_on_host``, and who waits prepares nothing.
        case.chains[rank.pid].end.kind == "python"
        and ever.samples >= SAMPLES
        and len(ever.lines()) >= LINES
        and not ever.seen(*TRAINING_TAGS)
        and quiet(case, rank).seconds == 0.0  # what remembers training has begun it
    )
