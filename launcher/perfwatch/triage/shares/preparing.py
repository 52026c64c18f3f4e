"""Preparation in Python before the first step: a vocabulary, an index, a table in memory."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.moving.work import releases_gil
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.shares.thresholds import MANY_SAMPLES

LINES = 2
UNSURE = 0.55  # of a hang, below what makes a verdict: after the patience nothing is other than before


def prepares(case: Case, rank: Member) -> bool:
    """True if it turns in a loop of Python that has an end, at several lines, and was never seen at training."""
    return has_not_trained(case, rank) and loop_of(case.history, case.chains[rank.pid].end.node).counts


def goes_through_rounds(case: Case, rank: Member) -> bool:
    """True if it has never trained, and turns in loops that have an end within one that waits for a condition.

    A vocabulary is merged in rounds, each over all of the words: a round ends, and nobody knows how many there will be.
    """
    kinds = loop_of(case.history, case.chains[rank.pid].end.node).kinds
    return kinds[:1] == ("for",) and "while" in kinds and has_not_trained(case, rank)


def prepares_natively(case: Case, rank: Member) -> bool:
    """True if it does so in many native calls, of numpy say: mostly without the GIL."""
    end = case.chains[rank.pid].end
    return (
        end.kind == "native"
        and _untrained(case, rank)
        and loop_of(case.history, end.node).counts
        and releases_gil(case.history, end.node)
    )


def has_not_trained(case: Case, rank: Member) -> bool:
    """True if it runs Python at several lines, was never seen at training, and nothing remembers any."""
    # One long call is ``computing_on_host``, and a thread that waits prepares nothing.
    return case.chains[rank.pid].end.kind == "python" and _untrained(case, rank)


def _untrained(case: Case, rank: Member) -> bool:
    ever = case.profile(rank)
    return (
        ever.samples >= MANY_SAMPLES
        and len(ever.lines()) >= LINES
        and not ever.seen(*TRAINING_TAGS)
        and quiet(case, rank).seconds == 0.0  # what remembers training has begun it
    )
