"""Whether an optimizer is asked for steps while no gradients are made: the closure that it was given leaves before the backward pass.

Frameworks hand their training step to ``step`` as a closure (Lightning does, and skips the pass where that step returns None). A
model that is frozen but for its head has backward passes too short to be sampled: so they must have been seen before.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.leaving_early import WHAT_NEXT
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import WINDOW_SECONDS, slow
from perfwatch.triage.words.frames import is_user, show, steps_torch, tags
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import Frame, Stack

FEW_SAMPLES = 40  # of forward passes, one after the other
# Samples of backward passes before, and their share: 40 others follow with e**-4 by chance.
FEW_BEFORE, SHARE_BEFORE = 3, 0.1
SURE = 0.78  # a model that was frozen but for its head since then has brief backward passes


def makes_no_gradients(case: Case, cause: Cause, rank: Member) -> Finding | None:
    """Fires on forward passes within the ``step`` of an optimizer of torch, which backward passes followed before, and do no more."""
    since = _since_backward(case.profile(rank, WINDOW_SECONDS))
    asked = _asked(since)
    if asked < FEW_SAMPLES or not _followed_before(case.profile(rank)):
        return None
    line = next(frame for one in reversed(since.sights) if (frame := asked_by(one.reading)) is not None)
    return slow(
        case,
        cause,
        rank,
        lost=1.0,
        confidence=SURE,
        frame=line,
        summary=f"the optimizer is asked for steps, and no gradients are made: {show(line)} is left before the backward pass",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "forward passes that an optimizer's step asked for",
                f"{asked} of {since.samples} samples, none in a backward pass",
                "backward in each step",
            ),
        ),
        alternatives=(Alternative(cause="evaluating", refuted_by="an optimizer asks for these passes"),),
        next=WHAT_NEXT,
    )


def unfollowed(case: Case, rank: Member) -> int:
    """Samples of forward passes that an optimizer's step asked for, if they are many and no backward pass followed; else 0."""
    seen = case.profile(rank, WINDOW_SECONDS)
    asked = _asked(seen)
    return asked if asked >= FEW_SAMPLES and not seen.seen("backward") else 0


def _asked(seen: Profile) -> int:
    return round(seen.share_where(lambda stack: asked_by(stack) is not None) * seen.samples)


def _followed_before(ever: Profile) -> bool:
    """Whether backward passes took a good part of the time, until the last that was seen."""
    last = len(ever.sights) - len(_since_backward(ever).sights)
    before = Profile(ever.sights[:last], ever.seconds)
    return before.share("backward") >= SHARE_BEFORE and before.share("backward") * before.samples >= FEW_BEFORE


def asked_by(stack: Stack) -> Frame | None:
    """The program's own frame that a step of torch's optimizers called, where that is in a forward pass now; None elsewhere."""
    if "forward" not in tags(stack):
        return None
    called = None
    for frame in stack.frames:
        if steps_torch(frame):
            return called
        called = frame if is_user(frame) else called
    return None


def _since_backward(seen: Profile) -> Profile:
    """The samples after the last one in a backward pass."""
    return seen.after_last(lambda stack: "backward" in tags(stack))
