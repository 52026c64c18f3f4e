"""Every capture that there is; a file of its own, for a watch needs none of them until one is asked for."""

from perfwatch.captures import flame, ncu, nsys, stacks, torch_memory, torch_profiler
from perfwatch.captures.capture import Capture

CAPTURES: tuple[Capture, ...] = (torch_profiler, torch_memory, nsys, ncu, flame, stacks)


def named(name: str) -> Capture | None:
    """The capture of this name."""
    return next((one for one in CAPTURES if one.NAME == name), None)
