"""The steps of a run, and what several levers ask of them."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from perfwatch.headroom.gain import Budget, Saved, budget
from perfwatch.headroom.roofs import matrices
from perfwatch.headroom.shares import idle
from perfwatch.headroom.step import SECOND, Kernel, Operation, Steps
from perfwatch.traces.families import short_name
from perfwatch.traces.intervals import length, union, without
from perfwatch.traces.torch_device import FULL_PRECISION, TENSOR_CORES
from perfwatch.traces.torch_host import OPTIMIZER, WAITS, inside

WORTH = 0.02  # of a step: below it nothing is looked at closer
POINTWISE = ("elementwise", "norm", "reduce", "copy")
SEARCHED_KERNELS = 6  # of one convolution: cuDNN tries its algorithms
SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
GIB = 2**30


@dataclass(frozen=True)
class Seen:
    """A lever's evidence in one run.

    Attributes:
        evidence: facts of the trace, with figures.
        least, most: what the change saves.
        where: ``file:line`` of the program; empty where the trace has no stacks.
        unsure: what the trace does not say and the lever depends on.
    """

    evidence: str
    least: Saved
    most: Saved
    where: str = ""
    unsure: str = ""


class Facts:
    """The steps, and what several rows ask of them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.budget: Budget = budget(steps)
        self.whole = self.budget.seconds

    def share(self, seconds: float) -> str:
        """Of a step, in words."""
        return f"{seconds / self.whole:.0%} of the step"

    @cached_property
    def products(self) -> list[Kernel]:
        """Kernels of matrix products and convolutions."""
        return [one for one in self.steps.kernels if one.family == "gemm"]

    @cached_property
    def full_products(self) -> list[Kernel]:
        """Of them, those in 32 bits: by what the operation was given, else by the kernel's name."""
        return [one for one in self.products if full(one)]

    @cached_property
    def full_attention(self) -> list[Kernel]:
        """Attention in 32 bits."""
        named = re.compile(r"_f32_|float", re.IGNORECASE)
        return [
            one
            for one in self.steps.kernels
            if one.family == "attention"
            and (
                one.operation.type == "float"
                if one.operation is not None and one.operation.types
                else named.search(one.name)
            )
        ]

    @cached_property
    def graphed(self) -> float:
        """Share of the card's time in kernels that a CUDA graph launched."""
        total = self.steps.per_step(self.steps.kernels) or 1.0
        return self.steps.per_step(one for one in self.steps.kernels if one.in_graph) / total

    @cached_property
    def fused(self) -> bool:
        """True if a compiler fused the loops already."""
        loops = [one for one in self.steps.kernels if "triton" in one.name.lower()]
        return self.steps.per_step(loops) > 0.2 * (self.steps.per_step(self.loops) + self.steps.per_step(loops))

    @cached_property
    def loops(self) -> list[Kernel]:
        """Pointwise, normalisation, reduction and copy kernels of the passes, as torch runs them one by one."""
        return [
            one
            for one in self.steps.kernels
            if one.family in POINTWISE
            and one.part in ("forward", "backward", "recomputation")
            and "triton" not in one.name.lower()
            and not one.host_copy
            and not one.in_graph
            and not searches(one.operation)
        ]

    @cached_property
    def fused_loops(self) -> list[Kernel]:
        """Loops that a compiler made one kernel of."""
        return [one for one in self.steps.kernels if one.family in POINTWISE and "triton" in one.name.lower()]

    @cached_property
    def launches(self) -> float:
        """Of kernels, a step, by the host one by one."""
        return sum(not one.in_graph for one in self.steps.kernels) / self.steps.count

    @cached_property
    def gaps(self) -> dict[str, float]:
        """Seconds a step in which the card waits, by what the host is at; less what the profiler adds where that is known."""
        found = {what: length(spans) / SECOND / self.steps.count for what, spans in idle(self.steps).items()}
        traced = sum(found.values())
        scale = max(0.0, self.whole - self.steps.busy_seconds) / traced if traced else 0.0
        return {what: seconds * scale for what, seconds in found.items()}

    @cached_property
    def reads(self) -> list[tuple[float, float, str, int]]:
        """Calls in which the host waits for a value of the card within the steps: begin, end, operation, thread.

        A copy to the card from memory that may be paged out waits as well, and for no value.
        """
        sent = union(
            (one.begin, one.end)
            for one in self.steps.operations
            if any("HtoD" in kernel.name for kernel in one.kernels)
        )
        found = []
        for number, thread in self.steps.threads.items():
            for begin, end, name in thread.calls:
                if (
                    name.startswith(WAITS)
                    and end < self.steps.window[1]
                    and not name.startswith("cudaDeviceSynchronize")
                    and not inside(sent, begin)
                ):
                    found.append((begin, end, thread.operation_at(begin), number))
        return sorted(found)

    def host_of(self, launches: float) -> float:
        """Seconds a step of the host for so many launches."""
        return self.budget.host_least * min(1.0, launches / max(1.0, self.launches))

    def spread(self, seconds: float, least: float, most: float) -> tuple[float, float]:
        """A part of some seconds, at least and at most."""
        return seconds * least, seconds * most

    @cached_property
    def optimizer_host(self) -> float:
        """Seconds a step of the host in the optimizer, less waits."""
        spans = union(span for thread in self.steps.threads.values() for span in thread.optimizer)
        return self.steps.host_scale * length(without(spans, self.steps.waiting)) / SECOND / self.steps.count

    @cached_property
    def optimizer_kernels(self) -> list[Kernel]:
        """Launched in the optimizer."""
        return [one for one in self.steps.kernels if one.part == "optimizer"]

    @cached_property
    def scores(self) -> list[Operation]:
        """Operations on attention's matrix [..., queries, keys]: one product makes it, a softmax goes over it, the next reads it."""
        squares: set[tuple[int, ...]] = set()
        made: dict[int, tuple[int, ...]] = {}  # by the last product of each thread
        softened: dict[int, tuple[int, ...]] = {}
        for one in sorted(self.steps.operations, key=lambda item: item.begin):
            if one.name in SOFTMAX and one.sizes and square(one.sizes[0]):
                size = one.sizes[0][-2:]
                softened[one.thread] = size if made.get(one.thread) == size else ()
            elif (factors := matrices(one)) and len(factors[0]) == len(factors[1]) == 3:
                if softened.pop(one.thread, ()) == factors[0][1:]:
                    squares.add(factors[0][1:])
                made[one.thread] = (factors[0][1], factors[1][2])
        return [
            one
            for one in self.steps.operations
            if one.kernels and any(len(size) >= 3 and size[-2:] in squares for size in one.sizes)
        ] + [
            one  # its product makes the matrix: q k'
            for one in self.steps.operations
            if one.kernels and one.name == "aten::bmm" and len(one.sizes) > 1
            and len(one.sizes[0]) == 3 and len(one.sizes[1]) == 3
            and (one.sizes[0][1], one.sizes[1][2]) in squares
            and not any(size[-2:] in squares for size in one.sizes)
        ]  # fmt: skip

    @cached_property
    def convolutions(self) -> list[Operation]:
        """With kernels."""
        return [
            one
            for one in self.steps.operations
            if one.kernels and "conv" in one.name and len(one.sizes) > 1 and len(one.sizes[0]) == 4
        ]

    def repeats(self, operations: Iterable[Operation], least: int) -> dict[str, list[Operation]]:
        """Operations by the line that issues them, where one line issues at least so many in a step."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for one in operations:
            found[self.steps.line(one)].append(one)
        return {line: those for line, those in found.items() if line and len(those) >= least * self.steps.count}


def full(kernel: Kernel) -> bool:
    """True if a kernel multiplies in 32 bits: by what its operation was given, else by its name."""
    operation = kernel.operation
    if operation is not None and operation.type:
        return operation.type == "float"
    return FULL_PRECISION.search(kernel.name) is not None or "tf32" in kernel.name.lower()


def simt(kernel: Kernel) -> bool:
    """True if a kernel multiplies outside the tensor cores."""
    return FULL_PRECISION.search(kernel.name) is not None and not TENSOR_CORES.search(kernel.name)


def square(size: tuple[int, ...]) -> bool:
    """True if a tensor may be the matrix of an attention."""
    return len(size) >= 3 and size[-1] >= 64 and size[-2] >= 64


def searches(operation: Operation | None) -> bool:
    """True if cuDNN tries its algorithms in a convolution."""
    return operation is not None and "conv" in operation.name and len(operation.kernels) >= 2 * SEARCHED_KERNELS


def towards(whole: Budget, seconds: float) -> Saved:
    """What has to be saved for a step of so many seconds."""
    return Saved(card=max(0.0, whole.card - seconds), host=max(0.0, whole.host - seconds), rest=max(0.0, whole.rest))


def step_line(facts: Facts) -> str:
    """The line that makes the optimizer step."""
    main = facts.steps.main
    number = next((key for key, one in facts.steps.threads.items() if one is main), 0)
    begin = next((one[0] for one in main.annotations if one[2].startswith(OPTIMIZER)), None)
    return facts.steps.line_at(begin, number) if begin is not None else ""


def operations_of(kernels: Iterable[Kernel]) -> list[Operation]:
    """Those that launched them, each once."""
    return list({id(one.operation): one.operation for one in kernels if one.operation is not None}.values())


def longest(kernels: list[Kernel]) -> str:
    """The name of the kernel that takes the most time."""
    times: dict[str, float] = defaultdict(float)
    for one in kernels:
        times[one.name] += one.end - one.begin
    return short_name(max(times, key=lambda name: times[name])) if times else ""
