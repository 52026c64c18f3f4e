"""A torch trace as steps: every kernel with the operation that launched it, every operation with its line.

Times are microseconds of the trace's clock inside, seconds a step in what is handed on. The trace is untrusted: an argument of
another type than torch writes counts as absent.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from perfwatch.errors import TraceUnreadable
from perfwatch.traces.families import Family, family
from perfwatch.traces.intervals import Interval, Intervals, length, overlap, union, without
from perfwatch.traces.torch_events import FullEvent, events_of
from perfwatch.traces.torch_host import (
    BACKWARD,
    LAUNCHES,
    STEP,
    WAITS,
    Span,
    Thread,
    innermost,
    is_user,
    training_thread,
)

DEVICE_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CALL_KINDS = frozenset({"cuda_runtime", "cuda_driver"})
GRAPH_LAUNCH = "cudaGraphLaunch"
BLOCKED_MICROSECONDS = 40.0  # a launch takes 5 to 10; longer, the queue was full or the copy was staged
CUDA = 1  # c10::DeviceType
MOST_FRAMES_LOOKED_AT = 200_000
SECOND = 1e6
MOST_AXES, LONGEST_AXIS = 8, 2**40  # of a tensor; what exceeds them is none
PARTS = ("forward", "backward", "recomputation", "optimizer", "other")
# What the profiler takes of the host, measured on an H200's with shapes: a step that launches as fast as it can, with it and without.
OPERATION_SECONDS, LAUNCH_SECONDS, FRAME_SECONDS = 2.5e-6, 3.5e-6, 2.0e-6
ALIKE = 0.8  # operations of a forward pass against those of another of the same model
OWN_SHARE = 0.35  # of the traced time that is the program's at least
# Called by a module, and by no formula of a derivative.
LAYERS = frozenset(f"aten::{name}" for name in (
    "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "batch_norm", "group_norm", "rms_norm", "embedding", "dropout", "softmax",
    "scaled_dot_product_attention", "relu", "gelu", "silu",
))  # fmt: skip
GEMM_OPERATIONS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


@dataclass(eq=False)
class Operation:
    """One operation of torch on the host.

    Attributes:
        sizes, types, strides, given: of the inputs, as far as the trace has them.
        above: the operation that called it.
        engine: inside autograd's engine.
        recomputed: of the forward pass, computed again inside the engine.
        kernels: that it launched itself.
    """

    name: str
    thread: int
    begin: float
    end: float
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    given: tuple[str, ...] = ()
    sequence: int | None = None
    forward_thread: int = 0
    above: "Operation | None" = None
    engine: bool = False
    recomputed: bool = False
    kernels: list["Kernel"] = field(default_factory=list)

    @property
    def device(self) -> float:
        """Microseconds of its kernels."""
        return sum(kernel.end - kernel.begin for kernel in self.kernels)

    @property
    def type(self) -> str:
        """Of its first tensor: float, half, bfloat16, ...; empty where the trace does not say."""
        for one in self.types:
            if one and one not in ("Scalar", "ScalarList", "TensorList", "GenericList"):
                return one.removeprefix("c10::").lower()
        return ""

    def outer(self) -> "Iterable[Operation]":
        """Itself, then what called it, outwards."""
        here: Operation | None = self
        while here is not None:
            yield here
            here = here.above


@dataclass(eq=False)
class Kernel:
    """One kernel, copy or fill. part: of PARTS; blocks: of its grid."""

    begin: float
    end: float
    name: str
    family: Family
    part: str
    operation: Operation | None
    launched: float | None
    blocks: int | None
    moved_bytes: int
    in_graph: bool

    @property
    def host_copy(self) -> bool:
        """Between host and card."""
        return "HtoD" in self.name or "DtoH" in self.name


@dataclass(frozen=True)
class Card:
    """What the trace says of the card. memory_bytes: all that it has."""

    name: str = ""
    capability: tuple[int, int] | None = None
    sms: int | None = None
    memory_bytes: int | None = None


@dataclass
class Steps:
    """The steps of one rank's window.

    Attributes:
        usual_seconds: of a step without the profiler, where it is known.
        peak_bytes: most that torch held on the card, where the trace says so.
    """

    card: Card
    kernels: list[Kernel]
    operations: list[Operation]
    threads: dict[int, Thread]
    usual_seconds: float | None = None
    peak_bytes: int | None = None
    world: int = 1

    @cached_property
    def main(self) -> Thread:
        """The thread that trains."""
        return training_thread(self.threads)

    @cached_property
    def count(self) -> int:
        """Steps in the window: how often the kind of optimizer that steps most often did.

        Where none is seen, as in a graph of the whole step: as many as usual ones fit; else the window is the unit.
        """
        fit = (
            1 if self.usual_seconds is None else round((self.window[1] - self.window[0]) / SECOND / self.usual_seconds)
        )
        return max(self._updates.values(), default=max(1, fit))

    @cached_property
    def _updates(self) -> Counter[str]:
        """How often each kind of optimizer stepped; one after the other, with no backward pass between, they are of one step."""
        begins = [begin for begin, _ in self.backward]
        found: Counter[str] = Counter()
        last: dict[str, int] = {}
        for begin, _, name in sorted(self.main.annotations):
            if name.startswith(STEP):
                passed = bisect.bisect_left(begins, begin)
                found[name] += name not in last or not begins or passed > last[name]
                last[name] = passed
        return found

    @property
    def counted(self) -> bool:
        """True if an optimizer's step is seen at all."""
        return any(name.startswith(STEP) for _, _, name in self.main.annotations)

    @cached_property
    def window(self) -> Interval:
        """From the first kernel to the last: before and after, nothing is known of the card."""
        return min(one.begin for one in self.kernels), max(one.end for one in self.kernels)

    @cached_property
    def busy(self) -> Intervals:
        """When anything ran on the card."""
        return union((one.begin, one.end) for one in self.kernels)

    @cached_property
    def computing(self) -> Intervals:
        """When anything but collectives and copies from or to the host ran."""
        return union((one.begin, one.end) for one in self.kernels if one.family != "collective" and not one.host_copy)

    @cached_property
    def idle(self) -> Intervals:
        """When nothing ran."""
        return without([self.window], self.busy)

    @cached_property
    def backward(self) -> Intervals:
        """In autograd's engine, on any thread."""
        return union(span for thread in self.threads.values() for span in thread.backward)

    @cached_property
    def waiting(self) -> Intervals:
        """When the host waits for the card, or for room in the queue to it."""
        return union(
            (begin, end)
            for thread in self.threads.values()
            for begin, end, name in thread.calls
            if name.startswith(WAITS) or end - begin > BLOCKED_MICROSECONDS
        )

    @cached_property
    def traced_seconds(self) -> float:
        """Of a step, in the window."""
        return (self.window[1] - self.window[0]) / SECOND / self.count

    @cached_property
    def busy_seconds(self) -> float:
        """Of a step, in which the card works."""
        whole = length(self.busy) / SECOND / self.count
        return whole if self.usual_seconds is None else min(whole, self.usual_seconds)

    @cached_property
    def computing_seconds(self) -> float:
        """Of a step, in which anything but a collective or a copy from or to the host runs."""
        return min(length(self.computing) / SECOND / self.count, self.seconds)

    def exposed_seconds(self, kernels: Iterable["Kernel"]) -> float:
        """Of a step, in which these run and nothing is computed; no more than the usual step leaves beside what is.

        A collective waits for the other ranks, and they are slowed by the profiler as well.
        """
        spans = union((one.begin, one.end) for one in kernels)
        alone = length(without(spans, self.computing)) / SECOND / self.count
        return min(alone, max(0.0, self.seconds - self.computing_seconds))

    @cached_property
    def seconds(self) -> float:
        """Of a step: the usual one where it is known, as the profiler takes its time on the host."""
        return self.usual_seconds if self.usual_seconds is not None else self.traced_seconds

    @cached_property
    def host_seconds(self) -> tuple[float, float]:
        """Of a step, in which the host launches, loads or computes, at least and at most: what bounds it however fast the card is.

        At most: what the trace shows, with the profiler's own time in it. A host that the card waits for, and that waits for
        nothing, takes the whole step.
        """
        spans = [(o.begin, o.end) for o in self.operations]
        spans += [(begin, end) for thread in self.threads.values() for begin, end, _ in thread.calls]
        begin, end = min((one[0] for one in spans), default=0.0), max((one[1] for one in spans), default=0.0)
        own = (end - begin - length(overlap(self.waiting, [(begin, end)]))) / SECOND / self.count
        frames = sum(len(thread.frames) for thread in self.threads.values())
        launches = sum(not one.in_graph for one in self.kernels)
        profiler = len(self.operations) * OPERATION_SECONDS + launches * LAUNCH_SECONDS + frames * FRAME_SECONDS
        profiler /= self.count
        least, most = max(OWN_SHARE * own, own - 1.6 * profiler), own
        if self.usual_seconds is not None:
            most = max(OWN_SHARE * own, own - 0.8 * profiler)
        if self.usual_seconds is not None and self._never_waits and own > self.usual_seconds > self.busy_seconds / 0.9:
            least = most = self.usual_seconds
        return min(least, self.seconds), min(most, self.seconds)

    @property
    def _never_waits(self) -> bool:
        """True if the host reads nothing off the card within a step."""
        calls = (call for thread in self.threads.values() for call in thread.calls)
        reads = sum(name.startswith(WAITS) and not name.startswith("cudaDeviceSynchronize") for _, _, name in calls)
        return reads < self.count

    @cached_property
    def host_scale(self) -> float:
        """What is the program's own of the host's time in the trace."""
        spans = union((o.begin, o.end) for o in self.operations)
        traced = (spans[-1][1] - spans[0][0]) / SECOND / self.count if spans else 0.0
        own = (
            traced - length(overlap(self.waiting, [(spans[0][0], spans[-1][1])])) / SECOND / self.count
            if spans
            else 0.0
        )
        return min(1.0, self.host_seconds[1] / own) if own > 0 else 1.0

    @cached_property
    def _lines(self) -> dict[int, tuple[list[float], list[Span]]]:
        found = {}
        for number, thread in self.threads.items():
            if 0 < len(thread.frames) <= MOST_FRAMES_LOOKED_AT:
                spans = innermost(thread.frames, is_user)
                found[number] = ([one[0] for one in spans], spans)
        return found

    @cached_property
    def _forward(self) -> dict[int, Operation]:
        """The innermost operation of the forward pass with each sequence number."""
        return {one.sequence: one for one in self.operations if one.sequence is not None and not one.engine}

    def line(self, operation: Operation | None) -> str:
        """``file:line`` of the function of the program that an operation stands for; empty without stacks.

        The line is where the function begins: the profiler tells no other. One of the backward pass: its forward's.
        """
        here = operation
        while here is not None and here.engine and not here.recomputed:
            if here.sequence is not None and here.sequence in self._forward:
                forward = self._forward[here.sequence]
                return self.line_at(forward.begin, forward.thread)
            here = here.above
        return self.line_at(operation.begin, operation.thread) if operation is not None else ""

    def line_at(self, moment: float, thread: int) -> str:
        """The innermost line of the program at a moment of a thread; empty without stacks."""
        begins, spans = self._lines.get(thread, ([], []))
        at = bisect.bisect_right(begins, moment) - 1
        if at < 0 or spans[at][1] < moment:
            return ""
        name = spans[at][2].split(": ", 1)[0]
        file, _, line = name.rpartition("(")
        return f"{file.rsplit('/', 1)[-1]}:{line.rstrip(')')}" if file else name

    def top_line(
        self, operations: Iterable[Operation], weight: Callable[[Operation], float] = lambda o: o.device
    ) -> str:
        """The line that most of them, by a weight, stand for."""
        found: dict[str, float] = defaultdict(float)
        for one in operations:
            if line := self.line(one):
                found[line] += weight(one)
        return max(found, key=lambda line: found[line], default="")

    def per_step(self, kernels: Iterable[Kernel]) -> float:
        """Seconds a step in kernels, each counted by itself."""
        return sum(one.end - one.begin for one in kernels) / SECOND / self.count

    @cached_property
    def has_shapes(self) -> bool:
        """True if the trace says what the operations were given."""
        return any(one.sizes for one in self.operations)

    @cached_property
    def has_stacks(self) -> bool:
        """True if the trace says where in the program they stand."""
        return any(thread.frames for thread in self.threads.values())

    def runs(self, prefixes: tuple[str, ...]) -> bool:
        """True if an operation or a range of the program begins so."""
        named = (name for thread in self.threads.values() for _, _, name in thread.annotations)
        return any(name.startswith(prefixes) for name in chain(named, (one.name for one in self.operations)))

    @cached_property
    def _forward_begins(self) -> list[float]:
        return sorted(o.begin for o in self.operations if not o.engine and o.kernels and o.sequence is not None)

    @cached_property
    def passes(self) -> list[Interval]:
        """The backward passes: forward operations with a gradient stand between two of them."""
        forward = self._forward_begins
        found: list[Interval] = []
        for begin, end in self.backward:
            if found and bisect.bisect_right(forward, begin) <= bisect.bisect_right(forward, found[-1][1]):
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((begin, end))
        return found

    @cached_property
    def backwards_in_step(self) -> int:
        """Backward passes of a step: more than one is gradient accumulation.

        Passes between which an optimizer steps are of several models, passes after different forward operations of several losses.
        """
        passes = self.passes
        if len(passes) <= self.count:
            return 1
        steps = sorted(begin for begin, _, name in self.main.annotations if name.startswith(STEP))
        updates = 1 + sum(
            bisect.bisect_right(steps, before[1]) < bisect.bisect_right(steps, after[0])
            for before, after in pairwise(passes)
        )
        forward = self._forward_begins
        sizes = sorted(
            bisect.bisect_right(forward, after[0]) - bisect.bisect_right(forward, before[1])
            for before, after in pairwise(passes)
        )
        if sizes[0] < ALIKE * sizes[-1]:
            return 1
        return max(1, round(len(passes) / max(updates, self.count)))


def read(path: Path, usual_seconds: float | None = None) -> Steps:
    """The steps of a trace file. Raises TraceUnreadable: no such file, or nothing of a card in it."""
    head: dict[str, Any] = {}
    steps = _Reader(events_of(path, FullEvent, phases=("X", "i"), head=head)).steps()
    if not steps.kernels:
        raise _without_kernels(steps, path)
    if steps.window[1] <= steps.window[0]:
        raise TraceUnreadable(
            f"{path}: none of its {len(steps.kernels):,} kernels has a duration",
            "write a trace out before the next window of the same process begins",
        )
    cards = head.get("cards", [])
    return replace(steps, card=_card(cards), usual_seconds=usual_seconds)


def _without_kernels(steps: Steps, path: Path) -> TraceUnreadable:
    """Why a trace tells nothing of a card."""
    if not steps.operations:
        return TraceUnreadable(
            f"{path}: no operation of torch ran in this window: the job waited all of it, or does not train",
            "take a longer one: perfwatch capture torch --seconds 10 --stacks --shapes",
        )
    if any(name in LAUNCHES for thread in steps.threads.values() for _, _, name in thread.calls):
        return TraceUnreadable(
            f"{path}: kernels were launched and none ran in this window: the host is further ahead of its GPU than that",
            "take a longer one: perfwatch capture torch --seconds 5 --stacks --shapes",
        )
    return TraceUnreadable(
        f"{path}: the job ran {len(steps.operations):,} operations on the CPU in this window and used no GPU: headroom judges "
        "what a GPU does",
        "perfwatch attach PID says whether the job is slow, and why",
    )


def _card(cards: list[dict[str, Any]]) -> Card:
    if not cards:
        return Card()
    one = cards[0]
    major, minor = _whole(one.get("computeMajor")), _whole(one.get("computeMinor"))
    name = one.get("name")
    return Card(
        name=name[:80] if isinstance(name, str) else "",
        capability=(major, minor) if major is not None and minor is not None else None,
        sms=_whole(one.get("numSms")),
        memory_bytes=_whole(one.get("totalGlobalMem")),
    )


class _Reader:
    """Sorts the events, then ties kernels to operations and operations to each other."""

    def __init__(self, events: Iterable[FullEvent]) -> None:
        self.threads: dict[int, Thread] = defaultdict(Thread)
        self._works: list[FullEvent] = []
        self._launches: dict[int, tuple[int, float, str]] = {}
        self._by_external: dict[int, Operation] = {}
        self._operations: list[Operation] = []
        self._peak = 0
        for event in events:
            self._take(event)

    def _take(self, event: FullEvent) -> None:
        args = event.args
        if event.ph == "i":
            if event.name == "[memory]" and args is not None and args.card == CUDA:
                self._peak = max(self._peak, _whole(args.held) or 0)
            return
        event.dur = max(0.0, event.dur)  # clocks of host and card that drift apart make some negative
        begin, end = event.ts, event.ts + event.dur
        if event.cat in DEVICE_KINDS:
            self._works.append(event)
        elif not isinstance(event.tid, int):
            return
        elif event.cat == "cpu_op":
            self.threads[event.tid].operations.append((begin, end, event.name))
            operation = Operation(event.name, event.tid, begin, end)
            if args is not None:
                operation.sizes, operation.strides = _sizes(args.sizes), _sizes(args.strides)
                operation.types, operation.given = _words(args.types), _words(args.given)
                operation.sequence, operation.forward_thread = _whole(args.sequence), _whole(args.forward_thread) or 0
                if (external := _whole(args.external)) is not None:
                    self._by_external[external] = operation
            self._operations.append(operation)
        elif event.cat == "user_annotation":
            self.threads[event.tid].annotations.append((begin, end, event.name))
        elif event.cat == "python_function":
            self.threads[event.tid].frames.append((begin, end, event.name))
        elif event.cat in CALL_KINDS:
            self.threads[event.tid].calls.append((begin, end, event.name))
            if args is not None and (correlation := _whole(args.correlation)) is not None:
                self._launches[correlation] = (event.tid, begin, event.name)

    def steps(self) -> Steps:
        self._nest()
        kernels = [self._kernel(event) for event in self._works]
        kernels.sort(key=lambda one: one.begin)
        return Steps(Card(), kernels, self._operations, dict(self.threads), peak_bytes=self._peak or None)

    def _nest(self) -> None:
        by_thread: dict[int, list[Operation]] = defaultdict(list)
        for operation in self._operations:
            by_thread[operation.thread].append(operation)
        for operations in by_thread.values():
            operations.sort(key=lambda one: (one.begin, -one.end))
            stack: list[Operation] = []
            again: dict[Operation, list[Operation]] = defaultdict(list)  # by the node of the backward pass around them
            forward: set[Operation] = set()
            for one in operations:
                while stack and stack[-1].end < one.end:
                    stack.pop()
                above = stack[-1] if stack else None
                one.above = above
                one.engine = one.name.startswith(BACKWARD) or (above is not None and above.engine)
                # The engine computes without recording. What it records is the forward pass, computed again, or, where no
                # layer is called, a backward pass that is to be differentiated (create_graph=True).
                recorded = one.sequence is not None and one.forward_thread == 0 and one.name.startswith("aten::")
                one.recomputed = above is not None and above.engine and (above.recomputed or recorded)
                if one.recomputed:
                    again[stack[0]].append(one)
                    if one.name in LAYERS:
                        forward.add(stack[0])
                stack.append(one)
            for node, those in again.items():
                for one in those if node not in forward else ():
                    one.recomputed = False

    def _kernel(self, event: FullEvent) -> Kernel:
        args = event.args
        launch = self._launches.get(_whole(args.correlation) or -1) if args is not None else None
        operation = self._by_external.get(_whole(args.external) or -1) if args is not None else None
        kind = family(event.name)
        grid = args.grid if args is not None else None
        blocks = None
        if isinstance(grid, list) and len(grid) == 3 and all(isinstance(one, int) for one in grid):
            blocks = grid[0] * grid[1] * grid[2]
        kernel = Kernel(
            begin=event.ts,
            end=event.ts + event.dur,
            name=event.name,
            family=kind,
            part=self._part(operation, launch),
            operation=operation,
            launched=launch[1] if launch is not None else None,
            blocks=blocks,
            moved_bytes=(_whole(args.bytes) or 0) if args is not None else 0,
            in_graph=launch is not None and launch[2].startswith(GRAPH_LAUNCH),
        )
        if operation is not None:
            operation.kernels.append(kernel)
        return kernel

    def _part(self, operation: Operation | None, launch: tuple[int, float, str] | None) -> str:
        if operation is not None and operation.recomputed:
            return "recomputation"
        if launch is None:
            return "other"
        part = self.threads[launch[0]].part_at(launch[1])
        return "backward" if part == "forward" and operation is not None and operation.engine else part


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(value: object) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else "" for one in value) if isinstance(value, list) else ()


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    return tuple(_size(one) for one in value) if isinstance(value, list) else ()


def _size(value: object) -> tuple[int, ...]:
    """Of one tensor; empty for what is none."""
    if not isinstance(value, list) or len(value) > MOST_AXES:
        return ()
    found = tuple(n for n in value if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < LONGEST_AXIS)
    return found if len(found) == len(value) else ()
