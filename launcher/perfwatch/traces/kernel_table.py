"""The kernel table: ncu's measurements, summed per kernel and pass and per family, and how well the GPU was used.

The efficiency of a set of kernels is Σ time · max(dram / dram_max, tensor / tensor_max) / Σ time: how near each kernel
came to the nearer of its two roofs, weighted by its time. ``dram_max`` is the highest DRAM rate of any kernel of this
capture, so 1 is what this very run has shown to be possible; ``tensor_max`` is 100, or 50 where the counter tops out
there. Kernels that only draw the initial weights count zero times.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from perfwatch.traces.families import FAMILIES, Family, family, short_name
from perfwatch.traces.ncu_rows import KernelRun
from perfwatch.traces.passes import PASSES, Pass, initialising, passes

# Cards that halve the rate of products accumulated in 32 bits (GeForce) show 50 at most; a busy Hopper shows 95.
_HALF_PLATEAU_PERCENT = (48.0, 50.5)


class KernelRow(msgspec.Struct, frozen=True):
    """One kernel in one pass. Times and bytes are sums over its runs, shares are of the counted time."""

    name: str
    short_name: str
    family: Family
    training_pass: Pass
    count: int
    time_ns: float
    share: float
    dram_gb_per_second: float | None
    tensor_percent: float | None  # weighted by time
    l2_read_bytes: float | None
    l2_write_bytes: float | None
    instructions: float | None
    efficiency: float | None


class Group(msgspec.Struct, frozen=True):
    """A family or a pass as a whole."""

    name: str
    count: int
    time_ns: float
    share: float
    efficiency: float | None


class KernelTable(msgspec.Struct, frozen=True):
    """A capture, folded. ``efficiency`` is None where neither roof was measured."""

    kernels: int
    initialising_kernels: int  # of them, left out of everything below
    unmeasured_kernels: int  # of them: ncu gave no time for these, so they are left out as well
    time_ns: float
    efficiency: float | None
    dram_max_gb_per_second: float | None
    tensor_max_percent: float
    rows: tuple[KernelRow, ...]  # longest first
    families: tuple[Group, ...]
    passes: tuple[Group, ...]


def fold(runs: Sequence[KernelRun]) -> KernelTable:
    """The table of a capture's kernels, given in the order in which they ran."""
    names = [run.name for run in runs]
    first = initialising(names)
    after = list(zip(runs[first:], passes(names)[first:], strict=True))
    counted = [(_Timed(run, run.time_ns), of) for run, of in after if run.time_ns is not None]
    rates = [run.rate for run, _ in counted if run.rate is not None]
    dram_max = max(rates, default=None)
    tensor_max = _tensor_max([run.of.tensor_percent for run, _ in counted if run.of.tensor_percent is not None])
    total = sum(run.time_ns for run, _ in counted)
    roofs = _Roofs(dram_max, tensor_max, total)
    kernels: dict[tuple[str, Pass], list[_Timed]] = {}
    by_family: dict[str, list[_Timed]] = {}
    by_pass: dict[str, list[_Timed]] = {}
    for run, of in counted:
        kernels.setdefault((run.of.name, of), []).append(run)
        by_family.setdefault(family(run.of.name), []).append(run)
        by_pass.setdefault(of, []).append(run)
    return KernelTable(
        kernels=len(runs),
        initialising_kernels=first,
        unmeasured_kernels=len(after) - len(counted),
        time_ns=total,
        efficiency=roofs.efficiency([run for run, _ in counted]),
        dram_max_gb_per_second=dram_max,
        tensor_max_percent=tensor_max,
        rows=tuple(
            sorted((roofs.row(name, of, those) for (name, of), those in kernels.items()), key=lambda row: -row.time_ns)
        ),
        families=tuple(roofs.group(one, by_family[one]) for one in FAMILIES if one in by_family),
        passes=tuple(roofs.group(one, by_pass[one]) for one in PASSES if one in by_pass),
    )


@dataclass(frozen=True)
class _Timed:
    """A run whose time is known."""

    of: KernelRun
    time_ns: float

    @property
    def rate(self) -> float | None:
        """DRAM traffic in GB/s, which is bytes a nanosecond."""
        return self.of.dram_bytes / self.time_ns if self.of.dram_bytes is not None and self.time_ns else None


class _Roofs:
    """The two roofs of a capture and its whole time: what every row is measured against."""

    def __init__(self, dram_max: float | None, tensor_max: float, total_ns: float) -> None:
        self._dram_max, self._tensor_max, self._total_ns = dram_max, tensor_max, total_ns

    def efficiency(self, runs: "Iterable[_Timed]") -> float | None:
        weighted = time = 0.0
        for run in runs:
            if (height := self._height(run)) is None:
                continue  # neither roof was measured: it says nothing, and missing is not zero
            weighted += run.time_ns * height
            time += run.time_ns
        return weighted / time if time else None

    def _height(self, run: "_Timed") -> float | None:
        heights = []
        if run.rate is not None and self._dram_max:
            heights.append(run.rate / self._dram_max)
        if run.of.tensor_percent is not None:
            heights.append(min(1.0, run.of.tensor_percent / self._tensor_max))
        return max(heights, default=None)

    def row(self, name: str, of: Pass, runs: "Sequence[_Timed]") -> KernelRow:
        time = sum(run.time_ns for run in runs)
        dram = _total(run.of.dram_bytes for run in runs)
        tensor = _total(None if run.of.tensor_percent is None else run.of.tensor_percent * run.time_ns for run in runs)
        return KernelRow(
            name=name,
            short_name=short_name(name),
            family=family(name),
            training_pass=of,
            count=len(runs),
            time_ns=time,
            share=self._share(time),
            dram_gb_per_second=dram / time if dram is not None and time else None,
            tensor_percent=tensor / time if tensor is not None and time else None,
            l2_read_bytes=_total(run.of.l2_read_bytes for run in runs),
            l2_write_bytes=_total(run.of.l2_write_bytes for run in runs),
            instructions=_total(run.of.instructions for run in runs),
            efficiency=self.efficiency(runs),
        )

    def group(self, name: str, runs: "Sequence[_Timed]") -> Group:
        time = sum(run.time_ns for run in runs)
        return Group(name, len(runs), time, self._share(time), self.efficiency(runs))

    def _share(self, time_ns: float) -> float:
        return time_ns / self._total_ns if self._total_ns else 0.0


def _tensor_max(percents: Sequence[float]) -> float:
    low, high = _HALF_PLATEAU_PERCENT
    return 50.0 if low <= max(percents, default=0.0) <= high else 100.0


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one of them was not measured."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
