"""What a training thread does once for each update of its parameters: the optimizer's step, and what goes with it."""

from perfwatch.probes.readings import Stack
from perfwatch.triage.frames import any_tag, short_name, tags, tags_of

EACH_LOSS = frozenset({"scale", "apply_scale", "_lazy_init_scale_growth_tracker"})  # of the scaler: once per backward
NO_UPDATE = frozenset("zero_grad __init__ add_param_group state_dict load_state_dict".split())


def updates(stack: Stack) -> bool:
    """Whether a stack is in an optimizer's update, not merely in zero_grad, or where the optimizer is made."""
    names = _names(stack, "optimizer")
    return bool(names) and not names & NO_UPDATE


def accompanies(stack: Stack) -> bool:
    """Whether a stack is in what goes with a step, once for each, and is no dearer than it."""
    return not updates(stack) and (any_tag(tags(stack), "clip") or bool(_names(stack, "scaler") - EACH_LOSS))


def clears(stack: Stack) -> bool:
    """Whether a stack is in zero_grad, which may cost as much as a plain step."""
    return "zero_grad" in _names(stack, "optimizer")


def _names(stack: Stack, tag: str) -> set[str]:
    return {short_name(frame.function) for frame in stack.frames if tag in tags_of(frame.function, frame.file)}
