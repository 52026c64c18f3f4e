"""Whether a loop that trains leaves its steps before the backward pass, as a guard does against a loss that is not finite.

From outside this looks like an evaluation: forward passes alone. What tells them apart is the text of the loop around.
"""

from perfwatch.probes.readings import Frame, SourceLine, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.shares.updating import steps_an_optimizer
from perfwatch.triage.slowness import slow
from perfwatch.triage.verdict import Alternative, Finding
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import is_user, own_frames, show, tags, tags_of

LEFT_EARLY = 0.7  # a flag that nobody sees may let a loop that trains evaluate
MOSTLY = 0.5  # of the forward passes
GUARDS = frozenset({"isfinite", "isnan", "isinf"})
EVALUATES = frozenset({"no_grad", "inference_mode", "set_grad_enabled", "eval"})
ELSEWHERE = ("backward", "optimizer", "scaler", "compile", "import")  # the first pass of a training compiles or imports
WHAT_NEXT = (
    "look at what the guard tests: a loss or gradients that are NaN, infinite or too large",
    "lower the learning rate",
)


def leaves_early(case: Case, cause: Cause, rank: Member, seen: Profile) -> Finding | None:
    """Forward passes without a backward pass in a loop that makes both by its text, and tests whether something is finite."""
    found = None if seen.seen(*ELSEWHERE) else training_loop(case.history, seen)
    thread = case.progress[rank.pid].thread
    if found is None or not may_leave_early(found[1]) or turns_within(case.history, rank.pid, thread) is not None:
        return None
    passes = f"{seen.share('forward'):.0%} of {seen.samples} samples, none in backward or the optimizer"
    return slow(
        case,
        cause,
        rank,
        lost=1.0,
        confidence=LEFT_EARLY,
        frame=found[0],
        summary=f"the loop turns but makes no update: it seems to leave at a loss that is not finite, at {show(found[0])}",
        evidence=(
            case.saw(
                "stack", f"pid {rank.pid}", "forward passes only, in a loop that trains", passes, "backward each time"
            ),
        ),
        alternatives=(Alternative(cause="evaluating", refuted_by="by its text the loop trains, and tests its loss"),),
        next=WHAT_NEXT,
    )


def training_loop(history: History, seen: Profile) -> tuple[Frame, SourceLine] | None:
    """Where most forward passes are called from, and the innermost loop around, if by its text it makes backward passes and steps too.

    Such a loop trains, unless a flag says that it evaluates this time, or it collects experience between two updates.
    """
    if seen.share_where(in_environment(history, seen)):
        return None
    passes = [one.reading for one in seen.sights if "forward" in tags(one.reading)]
    around = [(stack.samples, found) for stack in passes if (found := _loop_around(history, stack)) is not None]
    trains = [(samples, found) for samples, found in around if steps_an_optimizer(found[1])]
    if sum(samples for samples, _ in trains) <= MOSTLY * sum(stack.samples for stack in passes):
        return None
    return max(trains, key=lambda one: one[0])[1]


def _loop_around(history: History, stack: Stack) -> tuple[Frame, SourceLine] | None:
    frames = own_frames(stack)
    depth = max(index for index, frame in enumerate(frames) if "forward" in tags_of(frame.function, frame.file))
    outside = [frame for frame in frames[depth + 1 :] if is_user(frame)]
    for frame in outside:
        line = line_of(history, frame)
        if line is None or line.loops:
            return (outside[0], line) if line is not None else None
    return None


def may_leave_early(loop: SourceLine) -> bool:
    """Whether a loop that trains tests whether something is finite, and nothing in it or around says that it evaluates as well."""
    return bool(names(loop.loop_calls) & GUARDS) and not names((*loop.loop_calls, *loop.within)) & EVALUATES
