"""What a training thread does once for each update of its parameters: the optimizer's step, and what goes with it."""

import re

from perfwatch.probes.readings import SourceLine, Stack
from perfwatch.triage.code import names
from perfwatch.triage.frames import any_tag, short_name, tags, tags_of
from perfwatch.triage.loops import TRAINS

EACH_LOSS = frozenset({"scale", "apply_scale", "_lazy_init_scale_growth_tracker"})  # of the scaler: once per backward
NO_UPDATE = frozenset("zero_grad __init__ add_param_group state_dict load_state_dict".split())
STEPPED = re.compile(r"opt|adam|sgd|solver", re.IGNORECASE)  # what is stepped: no scheduler, environment or profiler


def steps_an_optimizer(line: SourceLine | None) -> bool:
    """Whether the loop around a line of the program, or a function that it calls, makes passes and an optimizer's steps."""
    if line is None or not names(line.loop_calls) >= TRAINS:
        return False
    stepped = (call.rpartition(".")[::2] for call in line.loop_calls)
    return any(name == "step" and STEPPED.search(of) for of, name in stepped)


def updates(stack: Stack) -> bool:
    """Whether a stack is in an optimizer's update, not merely in zero_grad, or where the optimizer is made."""
    called = _names(stack, "optimizer")
    return bool(called) and not called & NO_UPDATE


def accompanies(stack: Stack) -> bool:
    """Whether a stack is in what goes with a step, once for each, and is no dearer than it."""
    return not updates(stack) and (any_tag(tags(stack), "clip") or bool(_names(stack, "scaler") - EACH_LOSS))


def clears(stack: Stack) -> bool:
    """Whether a stack is in zero_grad, which may cost as much as a plain step."""
    return "zero_grad" in _names(stack, "optimizer")


def _names(stack: Stack, tag: str) -> set[str]:
    return {short_name(frame.function) for frame in stack.frames if tag in tags_of(frame.function, frame.file)}
