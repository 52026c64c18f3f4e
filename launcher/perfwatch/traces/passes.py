"""Which pass of a training step each kernel belongs to, from the order of the names: no range, no stack is needed.

Some names identify their pass: an optimizer's loop over tensors, a ``Backward`` or ``bprop``, a ``Forward`` or ``fprop``.
These are landmarks. Kernels between two landmarks of the same pass belong to that pass, and between two different ones to the
earlier. Kernels before the first landmark are counted with it. A capture without any landmark (inference by plain
matrix products, a benchmark of one kernel) is ``other`` throughout. Kernels of several streams or a recomputation
inside the backward pass (activation checkpointing) bend this: a recomputed layer counts as forward, which it is.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from perfwatch.traces.families import LONGEST_NAME, Family, family

Pass = Literal["forward", "backward", "optimizer", "other"]
PASSES: tuple[Pass, ...] = get_args(Pass)

_BACKWARD = re.compile(
    r"backward|bprop|_bwd|bwd_|_grad_|grad_input|compute_grad|wgrad|dgrad|dot_do_o|convert_dq", re.IGNORECASE
)
_FORWARD = re.compile(r"forward|fprop|_fwd|fwd_|vectorized_layer_norm_kernel|vectorized_gather_kernel", re.IGNORECASE)
# Weights are drawn by these before a run begins. Dropout draws too, by ``fused_dropout`` and ``bernoulli``.
_DRAWS = re.compile(r"normal_and_transform|uniform_and_transform|random_from_to|normal_kernel|uniform_kernel|erfinv")
_TRAINS: frozenset[Family] = frozenset({"gemm", "attention", "norm", "optimizer", "collective"})


def passes(names: Iterable[str]) -> list[Pass]:
    """The pass of each kernel, for names in the order in which they ran."""
    marks = [_landmark(name) for name in names]
    current: Pass = next((mark for mark in marks if mark is not None), "other")
    result: list[Pass] = []
    for mark in marks:
        current = mark or current
        result.append(current)
    return result


def initialising(names: Sequence[str]) -> int:
    """How many kernels at the start only set the weights: up to the last drawing of numbers before the first product.

    0 for a capture that began after the start, or whose weights came from a file.
    """
    last = 0
    for index, name in enumerate(names):
        if family(name) in _TRAINS or _landmark(name) is not None:
            break
        if _DRAWS.search(name[:LONGEST_NAME]):
            last = index + 1
    return last


def _landmark(name: str) -> Pass | None:
    name = name[:LONGEST_NAME]
    if family(name) == "optimizer":
        return "optimizer"
    if _BACKWARD.search(name):
        return "backward"
    if _FORWARD.search(name):
        return "forward"
    return None
