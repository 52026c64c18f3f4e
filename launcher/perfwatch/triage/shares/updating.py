"""What a training thread does once for each update of its parameters: the optimizer's step, and what goes with it."""

from functools import partial

from perfwatch.triage.history import History
from perfwatch.triage.moving.loops import TRAINS
from perfwatch.triage.moving.progress import StepClock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.words.code import asks_for_an_update, line_of, names
from perfwatch.triage.words.frames import any_tag, of_torch, short_name, tags, tags_of, user_frame, user_frames
from perfwatch_probes.readings import Frame, SourceLine, Stack

EACH_LOSS = frozenset({"scale", "apply_scale", "_lazy_init_scale_growth_tracker"})  # of the scaler: once per backward
NO_UPDATE = frozenset("zero_grad __init__ add_param_group state_dict load_state_dict".split())
PASSES = ("forward", "backward", "loader", "collective")
LOSSES = "torch/nn/functional.py"
MOSTLY = 0.5  # of such samples: of a torn one the outer line may be one that came later
# Weight of a sample: clipping costs twice a step of SGD without momentum (measured: 86 and 44 us), and zero_grad may, or a look
# at gradients, cost more than that.
ONCE, CLEARING = 0.5, 0.25
FEW_FORWARD = 25  # samples: a training thread would have been seen at backward, too
GRADIENTS_OFF = frozenset({"no_grad", "inference_mode"})
WITHOUT_GRADIENTS = 0.95  # of the samples: one that was torn, or whose line was not read
ASKED_OF_GRADIENTS = frozenset({"isfinite", "isnan", "isinf", "norm"})


def steps_an_optimizer(line: SourceLine | None) -> bool:
    """Whether the loop around a line of the program, or a function that it calls, makes passes and an optimizer's steps."""
    return line is not None and names(line.loop_calls) >= TRAINS and asks_for_an_update(line.loop_calls)


def updates(stack: Stack) -> bool:
    """Whether a stack is in an optimizer's update, not merely in zero_grad, or where the optimizer is made."""
    called = _names(stack, "optimizer")
    return bool(called) and not called & NO_UPDATE


def makes_gradients(stack: Stack) -> bool:
    """Whether a stack makes gradients or an update of them: to clear gradients is neither."""
    return any_tag(tags(stack), "backward", "scaler") or updates(stack)


def trains(seen: Profile) -> bool:
    """Whether any sample does."""
    return seen.share_where(makes_gradients) > 0.0


def since_gradients(seen: Profile) -> Profile:
    """The samples after the last one that made gradients, or an update of them."""
    return seen.after_last(makes_gradients)


def decodes(seen: Profile, steps: StepClock | None) -> bool:
    """Whether forward passes alone were seen for long: to decode item after item is no training whose launches are slow.

    Steps that are counted meanwhile are: all but the head may be frozen.
    """
    if steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds:
        return False
    since = since_gradients(seen)
    return since.samples >= FEW_FORWARD and since.share("forward") >= MOSTLY


def without_gradients(history: History, seen: Profile) -> bool:
    """Whether all of it was in functions that ``torch.no_grad`` or ``inference_mode`` decorates, or in blocks of either."""
    return seen.share_where(partial(_gradients_off, history)) >= WITHOUT_GRADIENTS


def _gradients_off(history: History, stack: Stack) -> bool:
    return "no_grad" in tags(stack) or in_block_without(history, stack) is not None


def in_block_without(history: History, stack: Stack) -> Frame | None:
    """The program's own frame that stands in a block of ``torch.no_grad`` or ``inference_mode``, by its text; else None."""
    for frame in user_frames(stack):
        line = line_of(history, frame)
        if line is not None and names(block.partition("(")[0] for block in line.within) & GRADIENTS_OFF:
            return frame
    return None


def accompanies(stack: Stack) -> bool:
    """Whether a stack is in what goes with a step, once for each: it costs up to twice as much (``ONCE``)."""
    return not updates(stack) and (any_tag(tags(stack), "clip") or bool(_names(stack, "scaler") - EACH_LOSS))


def clears(stack: Stack) -> bool:
    """Whether a stack is in zero_grad, which may cost as much as a plain step."""
    return "zero_grad" in _names(stack, "optimizer")


def clears_only(line: SourceLine | None) -> bool:
    """Whether a line of the program sets gradients to zero, and makes no step: what it calls may bear no name of an optimizer's."""
    return line is not None and "zero_grad" in names(line.calls) and "step" not in names(line.calls)


def looks_at_gradients(history: History, stack: Stack) -> bool:
    """Whether a stack stands at a line of the program that asks gradients for their size, or whether they are finite."""
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
    return 0.0 if parts > MOSTLY * (once + cleared) else (ONCE * once + CLEARING * cleared) * seen.samples


def _part_of_a_step(history: History, stack: Stack) -> bool:
    """Whether by its text the loop that makes the passes makes no step: one is made of all its turns.

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


def _names(stack: Stack, tag: str) -> set[str]:
    return {short_name(frame.function) for frame in stack.frames if tag in tags_of(frame.function, frame.file)}
