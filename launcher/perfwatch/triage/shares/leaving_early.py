"""Whether a loop that trains leaves its steps before the backward pass, as a guard does against a loss that is not finite.

From outside this looks like an evaluation: forward passes alone. What tells them apart is the text of the loop around, and
gradients that are cleared though none are made.
"""

from dataclasses import dataclass, replace

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.passes import alike, of_steps
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.shares.updating import clears, since_gradients, steps_an_optimizer, trains
from perfwatch.triage.slowness import WINDOW_SECONDS, slow
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import is_user, own_frames, show, tags, tags_of
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import FLAG, Frame, SourceLine, Stack

LEFT_EARLY = 0.7  # a flag that nobody sees may let a loop that trains evaluate
LEFT_BY_GUARD = 0.78  # it tests whether something is finite, and clears gradients as well
FEW_CLEARS = 3  # samples: a backward pass and a step cost more than the clearing, and are missed beside it with e**-6
MOSTLY = 0.5  # of the forward passes
GUARDS = frozenset({"isfinite", "isnan", "isinf"})
EVALUATES = frozenset({"no_grad", "inference_mode", "set_grad_enabled", "eval"})
BEGINNING = ("compile", "import")  # the first pass of a training
WHAT_NEXT = (
    "look at what the guard tests: a loss or gradients that are NaN, infinite or too large",
    "lower the learning rate",
)


@dataclass(frozen=True)
class Loop:
    """A loop that makes forward passes: where most are called from, the line there, and whether it says that it evaluates."""

    frame: Frame
    line: SourceLine
    evaluates: bool


def leaves_early(case: Case, cause: Cause, rank: Member, seen: Profile) -> Finding | None:
    """Forward passes without a backward pass in a loop that makes both by its text, and that tests whether something is finite.

    Or one that clears gradients again and again.
    """
    found = None if seen.seen(*BEGINNING) or trains(seen) else training_loop(case.history, seen)
    trained_at = of_steps(case, rank, "forward")
    if trained_at and not alike(seen, trained_at, "forward"):
        return None  # another line, or the same function for another caller: an evaluation with gradients left on
    thread = case.progress[rank.pid].thread
    if (
        found is None
        or not may_leave_early(case, rank, found)
        or turns_within(case.history, rank.pid, thread) is not None
    ):
        return None
    guarded, cleared = _tests_for_finite(found), _cleared(case, rank)
    passes = f"{seen.share('forward'):.0%} of {seen.samples} samples, {cleared} where gradients are cleared, none in backward or a step"
    why = "it seems to leave at a loss that is not finite" if guarded else "it clears gradients and makes none"
    return slow(
        case,
        cause,
        rank,
        lost=1.0,
        confidence=LEFT_BY_GUARD if guarded and cleared >= FEW_CLEARS else LEFT_EARLY,
        frame=found.frame,
        summary=f"the loop turns but makes no update: {why}, at {show(found.frame)}",
        evidence=(
            case.saw(
                "stack", f"pid {rank.pid}", "forward passes only, in a loop that trains", passes, "backward each time"
            ),
        ),
        alternatives=(
            Alternative(
                cause="evaluating",
                refuted_by=f"by its text the loop trains, and {'tests its loss' if guarded else 'gradients are cleared in it'}",
            ),
        ),
        next=WHAT_NEXT,
    )


def training_loop(history: History, seen: Profile) -> Loop | None:
    """Where most forward passes are called from, and the innermost loop around, if by its text it makes backward passes and steps too.

    Such a loop trains, unless a flag says that it evaluates this time, or it collects experience between two updates.
    """
    if seen.share_where(in_environment(history, seen)):
        return None
    passes = [one.reading for one in seen.sights if "forward" in tags(one.reading)]
    around = [(stack.samples, found) for stack in passes if (found := _loop_around(history, stack)) is not None]
    trains = [(samples, found) for samples, found in around if steps_an_optimizer(found.line)]
    many = sum(samples for samples, _ in trains)
    if many <= MOSTLY * sum(stack.samples for stack in passes):
        return None
    evaluating = sum(samples for samples, found in trains if found.evaluates)
    return replace(max(trains, key=lambda one: one[0])[1], evaluates=evaluating > MOSTLY * many)


def _loop_around(history: History, stack: Stack) -> Loop | None:
    frames = own_frames(stack)
    depth = max(index for index, frame in enumerate(frames) if "forward" in tags_of(frame.function, frame.file))
    outside = [frame for frame in frames[depth + 1 :] if is_user(frame)]
    for frame in outside:
        line = line_of(history, frame)
        if line is None or line.loops:
            callers = frames[frames.index(frame) + 1 :]
            return Loop(outside[0], line, _evaluates(history, line, callers)) if line is not None else None
    return None


def _evaluates(history: History, line: SourceLine, callers: tuple[Frame, ...]) -> bool:
    """Whether a flag decides on the backward pass, or gradients are switched off in the loop, around it or where it is called from.

    One function may serve both phases.
    """
    blocks = [block for frame in callers if (at := line_of(history, frame)) is not None for block in at.within]
    called = names((*line.loop_calls, *(block.partition("(")[0] for block in (*line.within, *blocks))))
    return (
        FLAG in line.passes_if
        or bool(called & EVALUATES)
        or any("no_grad" in tags_of(frame.function, frame.file) for frame in callers)
    )


def may_leave_early(case: Case, rank: Member, loop: Loop) -> bool:
    """Whether a loop that trains tests whether something is finite, or clears gradients and makes none.

    And nothing in it or around says that it evaluates as well.
    """
    return not loop.evaluates and (_tests_for_finite(loop) or _cleared(case, rank) >= FEW_CLEARS)


def _tests_for_finite(loop: Loop) -> bool:
    return bool(names(loop.line.loop_calls) & GUARDS)


def _cleared(case: Case, rank: Member) -> int:
    """Samples where gradients are cleared, since the last one in which any were made or used."""
    since = since_gradients(case.profile(rank, WINDOW_SECONDS))
    return sum(one.reading.samples for one in since.sights if clears(one.reading))
