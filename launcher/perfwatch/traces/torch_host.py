"""The host side of a torch.profiler trace: which thread trains, which part of a step it runs, which frame is innermost."""

import bisect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfwatch.traces.intervals import Interval, Intervals, length, union

Span = tuple[float, float, str]  # begin, end, name; times in microseconds
OPTIMIZER = "Optimizer."
STEP = "Optimizer.step"
LOADER = "enumerate(DataLoader)"
BACKWARD = "autograd::engine::evaluate_function"
MATH_ATTENTION = "aten::_scaled_dot_product_attention_math"
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
)
LAUNCHES = frozenset(
    "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx cudaGraphLaunch hipLaunchKernel".split()
)
# Waits by the frames that they show in Python, and what the thread does there. The outer call counts: a queue waits with a lock.
BLOCKED = {
    "waits for a subprocess": re.compile(
        r"subprocess\.py\(\d+\): (?:_?wait|_?communicate)|<built-in function (?:waitpid|wait4|waitid)>"
    ),
    "waits for a queue": re.compile(
        r"(?:multiprocessing/)?queues?\.py\(\d+\): (?:get|put|join)\b|<built-in method get of _queue\."
    ),
    "is in time.sleep()": re.compile(r"<built-in function sleep>"),
    "waits for a socket": re.compile(
        r"<built-in method (?:accept|connect|recv\w*|send\w*) of _socket\.|<built-in method (?:read|do_handshake) of _ssl\."
        r"|<built-in (?:method poll of select\.|function select>)"
    ),
    "waits for a lock": re.compile(r"<built-in method (?:acquire|__enter__) of _(?:thread|multiprocessing)\."),
}
MOST_ENCLOSING = 256  # spans looked back at for the one around a moment
# A frame is ``file(line): function``, the file below the folder that it was imported from.
_LIBRARIES = ("torch/", "numpy/", "<", "site-packages/", "importlib/", "multiprocessing/", "concurrent/", "asyncio/")


@dataclass
class Thread:
    """What one thread did. Spans of one kind nest or follow each other."""

    operations: list[Span] = field(default_factory=list)
    annotations: list[Span] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)  # of the CUDA runtime and driver
    frames: list[Span] = field(default_factory=list)

    def named(self, spans: Sequence[Span], prefix: str) -> Intervals:
        """The time covered by spans whose name begins so."""
        return union((begin, end) for begin, end, name in spans if name.startswith(prefix))

    @cached_property
    def optimizer(self) -> Intervals:
        """In an optimizer's step or zero_grad."""
        return self.named(self.annotations, OPTIMIZER)

    @cached_property
    def backward(self) -> Intervals:
        """In autograd's engine."""
        return self.named(self.operations, BACKWARD)

    @cached_property
    def plain_attention(self) -> Intervals:
        """In attention's plain implementation, in the forward pass."""
        return self.named(self.operations, MATH_ATTENTION)

    @cached_property
    def loading(self) -> Intervals:
        """In a DataLoader's ``__next__``."""
        return self.named(self.annotations, LOADER)

    @cached_property
    def operating(self) -> Intervals:
        """In any operation of torch."""
        return union((begin, end) for begin, end, _ in self.operations)

    @cached_property
    def waiting(self) -> Intervals:
        """In a call that waits for the card."""
        return union((begin, end) for begin, end, name in self.calls if name.startswith(WAITS))

    @cached_property
    def blocked(self) -> dict[str, Intervals]:
        """In a call of Python that waits, by what the thread does there; a moment may count for several. Empty without stacks."""
        kinds = {name: _blocked_in(name) for name in {name for _, _, name in self.frames}}
        found: dict[str, list[Interval]] = {kind: [] for kind in BLOCKED if kind in kinds.values()}
        for begin, end, name in self.frames:
            if (kind := kinds[name]) is not None:
                found[kind].append((begin, end))
        return {kind: union(spans) for kind, spans in found.items()}

    @cached_property
    def calls_by_begin(self) -> list[Span]:
        """Calls of the CUDA runtime and driver, in order."""
        return sorted(self.calls)

    @cached_property
    def by_begin(self) -> list[Span]:
        """Operations in order of their begin, the outer of two that begin together first."""
        return sorted(self.operations, key=lambda span: (span[0], -span[1]))

    @cached_property
    def _begins(self) -> list[float]:
        return [span[0] for span in self.by_begin]

    def operation_at(self, moment: float) -> str:
        """The innermost operation around a moment; empty outside all."""
        at = bisect.bisect_right(self._begins, moment)
        for begin, end, name in reversed(self.by_begin[max(0, at - MOST_ENCLOSING) : at]):
            if begin <= moment <= end:
                return name
        return ""

    def part_at(self, moment: float) -> str:
        """forward, backward, optimizer or other."""
        if inside(self.optimizer, moment):
            return "optimizer"
        if inside(self.backward, moment):
            return "backward"
        return "forward" if inside(self.operating, moment) else "other"


def _blocked_in(frame: str) -> str | None:
    return next((kind for kind, pattern in BLOCKED.items() if pattern.match(frame)), None)


def inside(intervals: Intervals, moment: float) -> bool:
    """True if a set of time holds a moment."""
    at = bisect.bisect_right(intervals, (moment, float("inf"))) - 1
    return at >= 0 and intervals[at][1] >= moment


def training_thread(threads: dict[int, Thread]) -> Thread:
    """The one that runs the optimizer, else the one that is longest in operations outside of autograd's engine."""

    def rank(thread: Thread) -> tuple[int, float]:
        steps = sum(name.startswith(STEP) for _, _, name in thread.annotations)
        return steps, length(thread.operating) - length(thread.backward)

    return max(threads.values(), key=rank, default=Thread())


def is_user(frame: str) -> bool:
    """True if a Python frame is of the program's own code: neither a library's nor Python's."""
    if frame.startswith((*_LIBRARIES, "nn.Module:")) or "/site-packages/" in frame:
        return False
    top = frame.split("(", 1)[0].split("/", 1)[0].removesuffix(".py")
    return top not in sys.stdlib_module_names


def innermost(spans: Iterable[Span], wanted: Callable[[str], bool]) -> list[Span]:
    """At each moment the innermost of the spans that are wanted: a list without overlap, in order."""
    result: list[Span] = []
    stack: list[Span] = []
    at = 0.0

    def until(moment: float) -> None:
        nonlocal at
        if stack and moment > at:
            result.append((at, moment, stack[-1][2]))
        at = max(at, moment)

    for span in sorted((one for one in spans if wanted(one[2])), key=lambda one: (one[0], -one[1])):
        while stack and stack[-1][1] <= span[0]:
            until(stack[-1][1])
            stack.pop()
        until(span[0])
        stack.append(span)
    while stack:
        until(stack[-1][1])
        stack.pop()
    return result


def shares(line: Sequence[Span], within: Sequence[Interval]) -> list[tuple[str, float]]:
    """Of spans without overlap, by name: how long they are in a set of time; the longest first."""
    seconds: dict[str, float] = {}
    at = 0
    for begin, end, name in line:
        while at < len(within) and within[at][1] <= begin:
            at += 1
        common, index = 0.0, at
        while index < len(within) and within[index][0] < end:
            common += min(end, within[index][1]) - max(begin, within[index][0])
            index += 1
        if common > 0:
            seconds[name] = seconds.get(name, 0.0) + common
    return sorted(seconds.items(), key=lambda item: -item[1])
