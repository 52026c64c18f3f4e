"""Where a step's time goes: shares that sum to one, and how near its products come to the card's peak.

Each moment of the window counts once: as computing where anything but a collective or a copy from or to the host runs, else
as communication, else as a copy, else as a gap by what the host is at. Kernels that run side by side share their time.
"""

from collections import defaultdict
from dataclasses import dataclass

from perfwatch.headroom.roofs import flops_of, peak_tflops
from perfwatch.headroom.step import SECOND, Kernel, Steps
from perfwatch.traces.intervals import Intervals, length, overlap, union, without

# What the card waits for, in the order in which a moment is given away.
GAPS = ("data", "launches in the optimizer", "launches in the backward pass", "launches in the forward pass", "host")


MOST_TFLOPS, TOO_FAST = 5000.0, 1.2  # of a card that is not known, dense; boost clocks exceed a data sheet by less


@dataclass(frozen=True)
class Share:
    """One part of a step. family and part are empty where it is no kernel."""

    what: str
    share: float
    seconds: float
    family: str = ""
    part: str = ""


@dataclass(frozen=True)
class Rate:
    """Products of one family and type: what they achieve, and of the peak of that type (None: card or type not known)."""

    family: str
    type: str
    tflops: float
    of_peak: float | None
    seconds: float


def shares(steps: Steps) -> tuple[Share, ...]:
    """All of a step, the largest first."""
    found: dict[tuple[str, str, str], float] = defaultdict(float)
    computing = length(steps.computing)
    works = [one for one in steps.kernels if one.family != "collective" and not one.host_copy]
    alone = sum(one.end - one.begin for one in works) or 1.0
    for one in works:
        found[_kind(one), one.family, one.part] += (one.end - one.begin) / alone * computing
    collectives = union((one.begin, one.end) for one in steps.kernels if one.family == "collective")
    found["exposed communication", "", ""] = length(without(collectives, steps.computing))
    copies = union((one.begin, one.end) for one in steps.kernels if one.host_copy)
    found["exposed copies", "", ""] = length(without(without(copies, steps.computing), collectives))
    # A collective waits for ranks that the profiler slows: what the usual step does not leave was not communication.
    room = max(0.0, steps.seconds * SECOND * steps.count - computing)
    for what in ("exposed communication", "exposed copies"):
        found[what, "", ""] = min(found[what, "", ""], room)
        room -= found[what, "", ""]
    gaps = {what: length(spans) for what, spans in idle(steps).items()}
    busy = sum(found.values())
    # The profiler slows the host and not the card: where the usual step is known, the gaps are what it has beyond the card's work.
    whole = steps.seconds * SECOND * steps.count
    traced = sum(gaps.values())
    scale = max(0.0, whole - busy) / traced if traced else 0.0
    for what, spent in gaps.items():
        found[what, "", ""] += spent * scale
    whole = sum(found.values()) or 1.0
    rows = (
        Share(what, used / whole, used / SECOND / steps.count, family, part)
        for (what, family, part), used in found.items()
        if used > 0
    )
    return tuple(sorted(rows, key=lambda one: -one.share))


def _kind(kernel: Kernel) -> str:
    return kernel.part if kernel.part in ("optimizer", "recomputation") else "kernels"


def idle(steps: Steps) -> dict[str, Intervals]:
    """The card's gaps by what the host was at."""
    found: dict[str, Intervals] = {}
    rest = steps.idle
    states = (steps.main.loading, steps.main.optimizer, steps.backward, steps.main.operating)
    for what, state in zip(GAPS, states, strict=False):
        found[what] = overlap(rest, state)
        rest = without(rest, state)
    found[GAPS[-1]] = rest
    return found


def rates(steps: Steps) -> tuple[Rate, ...]:
    """What matrix products and convolutions achieve, by type; empty without shapes."""
    done: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for operation in steps.operations:
        if operation.kernels and (flops := flops_of(operation)):
            kind = "conv" if "conv" in operation.name else "gemm"
            pair = done[kind, operation.type]
            pair[0] += flops
            pair[1] += operation.device / SECOND
    found = []
    for (kind, type_), (flops, seconds) in done.items():
        rate, peak = flops / max(seconds, 1e-9) / 1e12, peak_tflops(steps.card, type_)
        if (
            seconds > 0 and rate <= (peak or MOST_TFLOPS) * TOO_FAST
        ):  # faster than the card: its shapes are not of what ran
            found.append(Rate(kind, type_, rate, rate / peak if peak else None, seconds / steps.count))
    return tuple(sorted(found, key=lambda one: -one.seconds))
