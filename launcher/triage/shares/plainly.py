"""Whether a training on the CPU is plainly one: its time goes into training work that is known as such, and updates go with it."""

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.native import native_python_share
from perfwatch.triage.shares.no_gradients import unfollowed
from perfwatch.triage.shares.other_work import NATIVE_SHARE, OWN_SHARE
from perfwatch.triage.shares.own_work import own_work
from perfwatch.triage.shares.updating import updates
from perfwatch.triage.words.frames import tags

WINDOW_SECONDS = 15.0
MANY_PASSES = 8


def not_followed(case: Case) -> str:
    """That no backward pass was seen where an optimizer asks for forward passes, or no update after many backward passes; else empty."""
    if asked := max(unfollowed(case, rank) for rank in case.trainers):
        return (
            f"; {asked} samples of forward passes, none of a backward pass: most of it is frozen, or steps are skipped"
        )
    if passes := max(without_updates(case, rank) for rank in case.trainers):
        return f"; no update was seen after {passes} backward passes: it is brief, or steps are skipped (perfwatch run counts them)"
    return ""


def without_updates(case: Case, rank: Member) -> int:
    """How many backward passes were met, if they are many and no update was; else 0. Where steps are counted none need be seen."""
    seen = case.profile(rank, WINDOW_SECONDS)
    passes = seen.turns(lambda stack: "backward" in tags(stack))
    missed = case.steps(rank) is None and passes >= MANY_PASSES and seen.share_where(updates) == 0.0
    return passes if missed else 0


def trains_plainly(case: Case) -> bool:
    """Whether every rank is at training work that is known as such, and its backward passes, if many, go with updates."""
    for rank in case.trainers:
        seen = case.profile(rank, WINDOW_SECONDS)
        native = native_python_share(case, rank)
        if seen.share_where(own_work) >= OWN_SHARE and (native is None or native >= NATIVE_SHARE):
            return False
        if unfollowed(case, rank) or without_updates(case, rank):
            return False
    return True
