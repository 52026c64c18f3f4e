"""What a training thread does once for each step, and in which loops it does so."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen, median
from perfwatch.triage.moving.progress import StepClock, stepped
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LATELY_SECONDS,
    MANY_SAMPLES,
    MOSTLY,
    NEARLY_ALL,
)
from perfwatch.triage.shares.without_steps import in_environment
from perfwatch.triage.words.code import TRAINS, asks_for_an_update, line_of, names
from perfwatch.triage.words.frames import (
    any_tag,
    is_named,
    is_user,
    of_torch,
    own_frames,
    short_name,
    steps_torch,
    tags,
    tags_of,
    user_frame,
    user_frames,
)
from perfwatch_probes.readings import FLAG, Frame, SourceLine, Stack

FEW_STEPS = 3  # before so many, or where none was timed, the length of a step is unknown


EACH_LOSS = frozenset({"scale", "apply_scale", "_lazy_init_scale_growth_tracker"})  # of the scaler: once per backward
NO_UPDATE = frozenset("zero_grad __init__ add_param_group state_dict load_state_dict".split())
PASSES = ("forward", "backward", "loader", "collective")
LOSSES = "torch/nn/functional.py"
# Weight of a sample: clipping costs twice a step of SGD without momentum (measured: 86 and 44 us), and zero_grad may, or a look
# at gradients, cost more than that.
COMPANION_WEIGHT, CLEARING_WEIGHT = 0.5, 0.25
GRADIENTS_OFF = frozenset({"no_grad", "inference_mode"})
ASKED_OF_GRADIENTS = frozenset({"isfinite", "isnan", "isinf", "norm"})


def steps_an_optimizer(line: SourceLine | None) -> bool:
    """True if the loop around a line of the program, or a function that it calls, makes passes and an optimizer's steps."""
    return line is not None and names(line.loop_calls) >= TRAINS and asks_for_an_update(line.loop_calls)


def updates(stack: Stack) -> bool:
    """True if a stack is in an optimizer's update, not merely in zero_grad, or where the optimizer is made."""
    called = _functions_tagged(stack, "optimizer")
    return bool(called) and not called & NO_UPDATE


def makes_gradients(stack: Stack) -> bool:
    """True if a stack makes gradients or an update of them: to clear gradients is neither."""
    return any_tag(tags(stack), "backward", "scaler") or updates(stack)


def in_backward(stack: Stack) -> bool:
    """True if a stack is in a backward pass."""
    return "backward" in tags(stack)


def trains(seen: Profile) -> bool:
    """True if any sample does."""
    return seen.share_where(makes_gradients) > 0.0


def since_gradients(seen: Profile) -> Profile:
    """The samples after the last one that made gradients, or an update of them."""
    return seen.after_last(makes_gradients)


def decodes(seen: Profile, steps: StepClock | None) -> bool:
    """True if forward passes alone were seen for long: to decode item after item is no training whose launches are slow.

    Steps that are counted meanwhile are: all but the head may be frozen.
    """
    if steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds:
        return False
    since = since_gradients(seen)
    return since.samples >= ENOUGH_SAMPLES and since.share("forward") >= MOSTLY


def without_gradients(history: History, seen: Profile) -> bool:
    """True if all of it was in functions that ``torch.no_grad`` or ``inference_mode`` decorates, or in blocks of either."""
    return seen.share_where(partial(_gradients_off, history)) >= NEARLY_ALL


def _gradients_off(history: History, stack: Stack) -> bool:
    return "no_grad" in tags(stack) or in_block_without(history, stack) is not None


def in_block_without(history: History, stack: Stack) -> Frame | None:
    """The program's own frame that stands in a block of ``torch.no_grad`` or ``inference_mode``, by its text; else None."""
    for frame in user_frames(stack):
        line = line_of(history, frame)
        if line is not None and names(block.partition("(")[0] for block in line.within) & GRADIENTS_OFF:
            return frame
    return None


def without_gradients_at(history: History, stack: Stack) -> Frame | None:
    """The function that switches gradients off around a forward pass, or the line in such a block; None where none does."""
    if "forward" not in tags(stack):
        return None
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    decorated = (frame for frame, caller in pairs if "no_grad" in tags_of(caller.function, caller.file))
    return next(decorated, None) or in_block_without(history, stack)


def accompanies(stack: Stack) -> bool:
    """True if a stack is in what goes with a step, once for each: it costs up to twice as much (``ONCE``)."""
    return not updates(stack) and (any_tag(tags(stack), "clip") or bool(_functions_tagged(stack, "scaler") - EACH_LOSS))


def clears(stack: Stack) -> bool:
    """True if a stack is in zero_grad, which may cost as much as a plain step."""
    return "zero_grad" in _functions_tagged(stack, "optimizer")


def clears_only(line: SourceLine | None) -> bool:
    """True if a line of the program sets gradients to zero, and makes no step: what it calls may bear no name of an optimizer's."""
    return line is not None and "zero_grad" in names(line.calls) and "step" not in names(line.calls)


def looks_at_gradients(history: History, stack: Stack) -> bool:
    """True if a stack stands at a line of the program that asks gradients for their size, or whether they are finite."""
    if any_tag(tags(stack), *PASSES) or updates(stack):
        return False
    line = line_of(history, user_frame(stack))
    return line is not None and ".grad" in line.text and bool(names(line.calls) & ASKED_OF_GRADIENTS)


def beside_a_step(history: History, seen: Profile) -> float:
    """How many samples of a step are due, by those of what goes with each."""

    def dearer(stack: Stack) -> bool:
        return clears(stack) or looks_at_gradients(history, stack)

    once, cleared = seen.share_where(accompanies), seen.share_where(dearer)
    parts = seen.share_where(lambda stack: (accompanies(stack) or dearer(stack)) and _part_of_a_step(history, stack))
    return (
        0.0
        if parts > MOSTLY * (once + cleared)
        else (COMPANION_WEIGHT * once + CLEARING_WEIGHT * cleared) * seen.samples
    )


def _part_of_a_step(history: History, stack: Stack) -> bool:
    """True if by its text the loop that makes the passes makes no step: one is made of all its turns.

    Differentially private training clips the gradient of each example; an attack clears the gradients before each of its passes.
    """
    lines = (line_of(history, frame) for frame in user_frames(stack))
    passes = (names(line.loop_calls) for line in lines if line is not None and "backward" in names(line.loop_calls))
    inner = next(passes, None)
    return inner is not None and not any("step" in name for name in inner)


def at_a_pass(lines: set[Frame | None], stack: Stack) -> bool:
    """In a pass, in a loss of torch, or at a line of the program that makes a pass: a loss of its own is computed there.

    A sample that was torn, so that no frame of the program is left of it, is no update of the program's own either.
    """
    losses = any(of_torch(frame) and frame.file.endswith(LOSSES) for frame in stack.frames)
    own = user_frame(stack)
    return losses or any_tag(tags(stack), *PASSES) or own in lines or (own is not None and of_torch(own))


def _functions_tagged(stack: Stack, tag: str) -> set[str]:
    return {short_name(frame.function) for frame in stack.frames if tag in tags_of(frame.function, frame.file)}


# Function, file and line of the pass and of what calls it; further outside the functions alone: a training may be called twice.
Place = tuple[tuple[str, str, int], ...]

PLACE_LINES = 2
USUAL_PASSES = 4.0  # times the usual number of passes from one update that is met to the next: what lasts longer may be something else


def place(stack: Stack, tag: str) -> Place | None:
    """Where in the program a pass is made, innermost first; None outside of one."""
    frames = own_frames(stack)
    depths = [depth for depth, frame in enumerate(frames) if tag in tags_of(frame.function, frame.file)]
    if not depths:
        return None
    own = [frame for frame in frames[depths[-1] + 1 :] if is_named(frame)]
    return tuple(
        (short_name(frame.function), frame.file, frame.line if depth < PLACE_LINES else 0)
        for depth, frame in enumerate(own)
    )


def of_steps(case: Case, rank: Member, tag: str = "backward") -> frozenset[Place]:
    """Where passes were sampled while steps were made, by their count or, without one, by the updates that were sampled."""
    return case.history.once(("passes of steps", rank.pid, tag), lambda: _of_steps(case, rank, tag))


def alike(seen: Profile, places: frozenset[Place], tag: str = "backward") -> bool:
    """True if most passes are made where those of steps were."""
    passes = [one.reading for one in seen.sights if tag in tags(one.reading)]
    same = sum(stack.samples for stack in passes if place(stack, tag) in places)
    return same >= MOSTLY * sum(stack.samples for stack in passes)


def made_steps(case: Case, rank: Member, loop: Frame) -> bool | None:
    """True if passes of steps were met in the function of a loop, or in what it calls; None where none was met anywhere."""
    places = of_steps(case, rank)
    functions = {(function, file) for found in places for function, file, _ in found}
    return (short_name(loop.function), loop.file) in functions if places else None


def _of_steps(case: Case, rank: Member, tag: str) -> frozenset[Place]:
    sights = case.profile(rank).sights
    if case.steps(rank) is not None:
        made = stepped(case.history, rank.pid)
        return _places((one for one in sights if any(begin <= one.at <= end for begin, end in made)), tag)
    runs = [run for run in between(sights, updates)[:-1] if _samples_of_passes(run, tag)]
    usual = median(_samples_of_passes(run, tag) for run in runs) or 0.0
    return _places((one for run in runs if _samples_of_passes(run, tag) <= USUAL_PASSES * usual for one in run), tag)


def between(sights: tuple[Seen[Stack], ...], holds: Callable[[Stack], bool]) -> list[list[Seen[Stack]]]:
    """The samples before the first one for which something holds, those from there to the next one, and so on."""
    runs: list[list[Seen[Stack]]] = [[]]
    for one in sights:
        if holds(one.reading):
            runs.append([])
        else:
            runs[-1].append(one)
    return runs


def _samples_of_passes(run: list[Seen[Stack]], tag: str) -> int:
    return sum(one.reading.samples for one in run if tag in tags(one.reading))


def _places(sights: Iterable[Seen[Stack]], tag: str) -> frozenset[Place]:
    return frozenset(found for one in sights if (found := place(one.reading, tag)) is not None)


GUARDS = frozenset({"isfinite", "isnan", "isinf"})
EVALUATES = frozenset({"no_grad", "inference_mode", "set_grad_enabled", "eval"})
BEGINNING = ("compile", "import")  # the first pass of a training


@dataclass(frozen=True)
class Loop:
    """A loop that makes forward passes: where most are called from, the line there, and whether it says that it evaluates."""

    frame: Frame
    line: SourceLine
    evaluates: bool


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
    """True if a flag decides on the backward pass, or gradients are switched off in the loop, around it or where it is called from.

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
    """True if a loop that trains tests whether something is finite, or clears gradients and makes none.

    And nothing in it or around says that it evaluates as well.
    """
    return not loop.evaluates and (tests_for_finite(loop) or cleared_samples(case, rank) >= FEW_TIMES)


def tests_for_finite(loop: Loop) -> bool:
    """True if something in the loop tests whether a value is finite."""
    return bool(names(loop.line.loop_calls) & GUARDS)


def cleared_samples(case: Case, rank: Member) -> int:
    """Samples where gradients are cleared, since the last one in which any were made or used.

    A backward pass and a step cost more than the clearing, and are missed beside three of them with e**-6.
    """
    since = since_gradients(case.profile(rank, LATELY_SECONDS))
    return sum(one.reading.samples for one in since.sights if clears(one.reading))


def unfollowed(case: Case, rank: Member) -> int:
    """Samples of forward passes that an optimizer's step asked for, if they are many and no backward pass followed; else 0."""
    seen = case.profile(rank, LATELY_SECONDS)
    asked = asked_samples(seen)
    return asked if asked >= MANY_SAMPLES and not seen.seen("backward") else 0


def asked_samples(seen: Profile) -> int:
    """Samples of forward passes that an optimizer's step asked for."""
    return round(seen.share_where(lambda stack: asked_by(stack) is not None) * seen.samples)


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


def since_backward(seen: Profile) -> Profile:
    """The samples after the last one in a backward pass."""
    return seen.after_last(in_backward)


KEEPS = "retain_graph=True"


def keeps_most(case: Case, rank: Member) -> tuple[float, Frame | None, int] | None:
    """The share of its samples in a backward pass that keeps its graph, where, and of how many, if that is nearly all; else None."""
    seen, keeps = case.profile(rank, LATELY_SECONDS), partial(_keeps, case.history)
    share = seen.share_where(keeps)
    return (share, seen.top_line(keeps), seen.samples) if seen.samples >= MANY_SAMPLES and share >= NEARLY_ALL else None


def _keeps(history: History, stack: Stack) -> bool:
    line = line_of(history, user_frame(stack))
    return line is not None and KEEPS in line.text.replace(" ", "") and "backward" in tags(stack)
