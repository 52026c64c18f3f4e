"""What "a kernel was resident" says by itself, and what else tells of a card whose units cannot be seen (older than Hopper).

Utilisation is 100 % for a kernel that spins. Whether memory moves is told by the driver's memory utilisation (on H200: 1.3 times
the share of the bandwidth, and 0 for everything that hangs); where that is missing too, by the power.
"""

from collections.abc import Sequence
from itertools import pairwise

from perfwatch.triage.cards.baseline import Baseline, baseline
from perfwatch.triage.history import History
from perfwatch_probes import readings as r

LONGER = 2.0  # times the longest pause between two pieces of work: the card is then not known to be given any more
IDLE = 0.02  # of the time with a kernel resident: at or below it nothing is asked of the card (measured 0.0001 with a context)
RESIDENT = 0.95  # a kernel that never ends reads 1.0
BUSY = 0.9  # above it the card hardly waits for the host (a healthy training reads 0.98 to 1.0)
MOVES = 0.01  # of the time with memory in use; NVML counts in whole percent
# A kernel that spins draws what an empty context draws (126 of 123 W; training: 650 W).
SPIN_POWER_RISE = 0.15  # of the way from the least power to that of this run's work
SPIN_POWER_SHARE = 0.25  # of the limit, where this run was not seen at work
REMEMBERED, GUESSED = 0.75, 0.55  # how sure that makes: with and without a second witness beside utilisation
WINDOW_SECONDS = 5.0


def rough_kind(look: r.GpuSample, spin_watts: float | None) -> str:
    """What a card does, from one look without its units."""
    if look.utilisation is None:
        return "unknown"
    if look.utilisation <= IDLE:
        return "idle"
    if look.utilisation < RESIDENT:
        return "work" if look.utilisation >= BUSY else "wait"
    if look.memory_utilisation is not None:
        return "work" if look.memory_utilisation >= MOVES else "spin"
    return "spin" if draws_little(look, spin_watts) else "work"


def draws_little(look: r.GpuSample, spin_watts: float | None) -> bool:
    """Whether a card draws no more than one that does nothing."""
    return spin_watts is not None and look.power_watts is not None and look.power_watts <= spin_watts


def spin_power(history: History, uuid: str, before: Baseline) -> tuple[float | None, float]:
    """Below how many watts a resident kernel does nothing, and how sure that is."""
    if before.power_watts is not None and before.least_watts is not None:
        return before.least_watts + SPIN_POWER_RISE * (before.power_watts - before.least_watts), REMEMBERED
    seen = history.latest(r.Gpu, uuid)
    limit = seen.reading.power_limit_watts if seen is not None else None
    return (None if limit is None else SPIN_POWER_SHARE * limit), GUESSED


def seems_to_spin(history: History, uuid: str) -> list[tuple[float, bool]]:
    """Every look at a card without its units: when it was, and whether a kernel seemed to spin then."""
    floor, _ = spin_power(history, uuid, baseline(history, uuid, WINDOW_SECONDS))
    return [(one.at, rough_kind(one.reading, floor) == "spin") for one in history.series(r.GpuSample, uuid)]


def returns(looks: Sequence[tuple[float, str]]) -> int:
    """How often a card was given work after it had idled; 0 where it has idled for longer now than pauses lasted before."""
    begins = [at for (_, before), (at, now) in pairwise(looks) if before == "idle" and now not in ("idle", "unknown")]
    if len(begins) < 2 or looks[-1][0] - begins[-1] > LONGER * max(b - a for a, b in pairwise(begins)):
        return 0
    return len(begins)
