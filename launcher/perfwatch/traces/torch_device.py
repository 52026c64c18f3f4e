"""The GPU side of a torch.profiler trace: what ran when, its family and pass, and what it overlapped."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from perfwatch.traces.families import Family, family, short_name
from perfwatch.traces.intervals import Intervals, length, union, without
from perfwatch_probes.readings import KernelShare

MOST_KERNELS = 24  # that are told
# Matrix products without tensor cores: cuBLAS' and CUTLASS' names for FP32 in, FP32 arithmetic. TF32 says so.
FULL_PRECISION = re.compile(r"sgemm|simt|ffma|f32f32_f32f32", re.IGNORECASE)
TENSOR_CORES = re.compile(r"tf32|tensorop|s\d+gemm|bf16|_f16|h16", re.IGNORECASE)
HOST_COPY = re.compile(r"HtoD|DtoH")
PAGEABLE = "Pageable"


@dataclass(frozen=True)
class Work:
    """One kernel, copy or fill; times in microseconds. ``part``: the pass in which it was launched.

    ``plain_attention``: launched by attention's plain implementation.
    """

    begin: float
    end: float
    name: str
    part: str
    moved_bytes: int = 0
    plain_attention: bool = False


@dataclass
class Device:
    """All that ran on the cards of one rank."""

    works: list[Work] = field(default_factory=list)

    @cached_property
    def busy(self) -> Intervals:
        """When anything ran."""
        return union((work.begin, work.end) for work in self.works)

    @cached_property
    def kinds(self) -> dict[Family, list[Work]]:
        """By family."""
        found: dict[Family, list[Work]] = defaultdict(list)
        for work in self.works:
            found[_family(work.name)].append(work)
        return dict(found)

    @cached_property
    def communicating(self) -> Intervals:
        """When a collective ran."""
        return _time(self.kinds.get("collective", []))

    @cached_property
    def computing(self) -> Intervals:
        """When anything but collectives and copies from or to the host ran."""
        return _time(
            work
            for kind, works in self.kinds.items()
            if kind != "collective"
            for work in works
            if not HOST_COPY.search(work.name)
        )

    @property
    def exposed(self) -> Intervals:
        """Collectives beside which nothing was computed."""
        return without(self.communicating, self.computing)

    @cached_property
    def copies(self) -> list[Work]:
        """Copies between host and card."""
        return [work for work in self.works if HOST_COPY.search(work.name)]

    @property
    def copying(self) -> Intervals:
        """When one of them ran."""
        return _time(self.copies)

    @property
    def full_precision(self) -> float:
        """Time in matrix products outside the tensor cores."""
        return length(
            _time(
                work
                for work in self.kinds.get("gemm", [])
                if FULL_PRECISION.search(work.name) and not TENSOR_CORES.search(work.name)
            )
        )

    def kernels(self, most: int = MOST_KERNELS) -> tuple[KernelShare, ...]:
        """The longest, by name and pass."""
        found: dict[tuple[str, str, str], list[Work]] = defaultdict(list)
        for kind, works in self.kinds.items():
            for work in works:
                found[short_name(work.name), kind, work.part].append(work)
        longest = sorted(found.items(), key=lambda item: -sum(one.end - one.begin for one in item[1]))[:most]
        return tuple(
            KernelShare(
                name=name,
                family=kind,
                part=part,
                count=len(works),
                seconds=round(sum(one.end - one.begin for one in works) / 1e6, 6),
                exposed_seconds=round(length(without(_time(works), self.computing)) / 1e6, 6)
                if kind == "collective"
                else None,
            )
            for (name, kind, part), works in longest
        )


def _time(works: Iterable[Work]) -> Intervals:
    return union((work.begin, work.end) for work in works)


@lru_cache(maxsize=8192)
def _family(name: str) -> Family:
    return family(name)
