"""What a card is doing: ``work``, ``wait``, ``spin`` or ``idle``.

"Utilisation" says only that a kernel was resident: it reads 100 % for one that spins on a dead peer. The card's units tell
the rest. Where a card has no performance monitoring (older than Hopper), utilisation and power stand in, and are less sure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from perfwatch.triage.cards.activities import activities
from perfwatch.triage.cards.baseline import baseline
from perfwatch.triage.cards.flatness import FLAT, FLAT_MIB_PER_SECOND, NOT_STORED, flat
from perfwatch.triage.cards.residency import (
    BUSY,
    IDLE,
    REMEMBERED,
    RESIDENT,
    draws_little,
    returns,
    rough_kind,
    spin_power,
)
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.history import History, R, Seen
from perfwatch_probes import readings as r

WINDOW_SECONDS = 5.0
STALE_SECONDS = 5.0  # a card that was not read for so long is not known to do anything ...
STALE_INTERVALS = 2.0  # ... or for so many of its own intervals: many slow cards are read less often
ENOUGH_SECONDS = 2.0  # covered by looks that are long, where there are few
FEW_LOOKS = 3
# Of less than 0.15 of the time no cause is told. Waiting in a collective keeps 0.01 to 0.26 of the multiprocessors active.
SATURATED_WAITING, SATURATED_SM = 0.15, 0.5
MOST_LOOKS = 0.9  # of the time, for a window to be of one kind
# A kernel that only looks whether something has come, be it in host memory: few multiprocessors (0.01 to 0.26), no arithmetic,
# and over PCIe 69 MiB/s (a collective over sockets) to 116 (the same beside other programs on the card).
# A send that waits for its peer read 250 and, on another host, 1,530, a collective of two processes on one card 1,590 (with 0.00005
# of the memory's bandwidth for changing between them), of which nothing came to the card's own memory: 300 MiB/s that do are
# 0.00006 of its bandwidth. A kernel that works on what lies in host memory stores nothing either, and reads ten times as much.
POLLING_SM, POLLING_UNITS, POLLING_MIB_PER_SECOND = 0.3, 0.005, 300.0
UNSTORED_MIB_PER_SECOND = 6000.0  # of which nothing is stored: NOT_STORED
ASKING_INTEGER = (
    0.05  # a loop that only asks waits for each answer (0.0002 to 0.015); above it something may be counted
)
MONITORED = 1.0  # how sure a regime is where the units are in sight


@dataclass(frozen=True)
class Regime:
    """What one card did over a window. Shares are of time or of the unit's maximum, 0 to 1; None: this card does not tell.

    kind: ``work`` (it is busy nearly all the time, and data moves), ``wait`` (kernels come and go, and between them it waits
    for the host), ``spin`` (a kernel is resident, and no data moves to or from anywhere), ``idle`` (nothing is asked of it),
    ``unknown``. computes: of a card that spins, whether its arithmetic is used all the same: that kernel may end yet.
    """

    uuid: str
    kind: str = "unknown"
    sure: float = 0.0
    source: str = ""  # gpm, or nvml where that is missing
    seconds: float = 0.0  # over which it was looked at
    graphics: float | None = None  # a kernel was resident
    spinning: float = 0.0
    returns: int = 0  # of one that mostly idles: how often work came to it again, up to now
    pauses: int = 0  # stretches of looks in which it idled
    full: float | None = None  # a kernel was resident, of the time but for these
    computes: bool = False
    memory_utilisation: float | None = None  # of the time, as NVML tells it; stands in for ``dram``
    sm_active: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    fp32: float | None = None
    fp64: float | None = None
    pcie_mib_per_second: float | None = None  # the busier direction
    pcie_each_way_mib_per_second: float | None = None  # the less busy one: so much goes to and fro
    nvlink_mib_per_second: float | None = None
    power_watts: float | None = None
    sm_clock_mhz: float | None = None

    @property
    def waiting(self) -> float:
        """Share of the time in which no kernel was resident; 0 when not known."""
        return 0.0 if self.graphics is None else max(0.0, 1.0 - self.graphics)

    @property
    def paused_once(self) -> bool:
        """Whether it waited in one piece, and was full otherwise: one phase had ended, and another began."""
        return self.pauses == 1 and (self.full or 0.0) >= BUSY

    @property
    def units(self) -> float:
        """Share of its maximum of that unit which is used most: tensor cores, memory, FP32; 0 when not known."""
        return max(self.tensor or 0.0, self.dram or 0.0, self.fp32 or 0.0)

    @property
    def polls(self) -> bool:
        """Whether the kernel on it does nothing but look whether something has come."""
        unstored = self.dram is not None and self.dram <= NOT_STORED
        return (
            (self.graphics or 0.0) >= RESIDENT
            and self.sm_active is not None
            and self.sm_active <= POLLING_SM
            and self.units <= POLLING_UNITS
            and (self.nvlink_mib_per_second or 0.0) <= FLAT_MIB_PER_SECOND
            and (self.pcie_mib_per_second or 0.0) <= (UNSTORED_MIB_PER_SECOND if unstored else POLLING_MIB_PER_SECOND)
        )

    def shown(self) -> str:
        """The shares that decide, as a line of evidence."""
        if self.source == "nvml":
            power = "" if self.power_watts is None else f", {self.power_watts:.0f} W"
            memory = "" if self.memory_utilisation is None else f", memory in use {self.memory_utilisation:.0%}"
            return f"utilisation {self.graphics or 0:.0%}{memory}{power}"
        parts = [("graphics", self.graphics), ("SM", self.sm_active), ("tensor", self.tensor), ("DRAM", self.dram)]
        text = ", ".join(f"{name} {share:.0%}" for name, share in parts if share is not None)
        if (self.nvlink_mib_per_second or 0.0) > FLAT_MIB_PER_SECOND:
            text += f", NVLink {self.nvlink_mib_per_second:,.0f} MiB/s"
        return text + ("" if self.power_watts is None else f", {self.power_watts:.0f} W")


def unseen(history: History, pid: int) -> bool:
    """Whether a process uses CUDA and nothing is known of what its cards do: then a wait for one cannot be told from work."""
    seen = history.latest(r.GpuBinding, pid)
    return seen is not None and seen.reading.cuda is True and not regimes(history, pid)


def saturated(history: History, pid: int, seconds: float) -> bool:
    """Whether a card of this process is busy with real work nearly all the time: what the host loses then costs nothing."""
    return any(
        one.kind == "work"
        and one.waiting <= SATURATED_WAITING
        and one.sm_active is not None
        and one.sm_active >= SATURATED_SM
        and cards_of(history, pid).certain
        for one in regimes(history, pid, seconds)
    )


def regime(history: History, uuid: str, seconds: float = WINDOW_SECONDS) -> Regime:
    """What a card did over the last ``seconds``; ``unknown`` where it was not looked at lately, or too seldom."""
    return history.once(("regime", uuid, seconds), lambda: _regime(history, uuid, seconds))


def _regime(history: History, uuid: str, seconds: float) -> Regime:
    samples = _fresh(history, history.series(r.GpuSample, uuid, seconds=seconds), 0.0)
    looks = activities(history, uuid, seconds)
    looks = _fresh(history, looks, looks[-1].reading.interval_seconds if looks else 0.0)
    covered = sum(one.reading.interval_seconds for one in looks)
    if len(looks) >= FEW_LOOKS or covered >= ENOUGH_SECONDS:
        kinds = [(one.at, kind_of(one.reading)) for one in looks]
        found = _classed(uuid, kinds, [one.reading.graphics for one in looks], MONITORED, "gpm")
    elif len(samples) >= FEW_LOOKS:
        floor, sure = spin_power(history, uuid, baseline(history, uuid, seconds))
        if samples[-1].reading.memory_utilisation is not None:
            sure = REMEMBERED
        kinds = [(one.at, rough_kind(one.reading, floor)) for one in samples]
        found = _classed(uuid, kinds, [one.reading.utilisation for one in samples], sure, "nvml")
        found = replace(found, computes=not all(draws_little(one.reading, floor) for one in samples))
    else:
        return Regime(uuid)
    return _with_shares(found, looks, samples)


def regimes(history: History, pid: int, seconds: float = WINDOW_SECONDS) -> tuple[Regime, ...]:
    """Of every card of a process that is known to do anything, the busiest first."""
    found = (regime(history, uuid, seconds) for uuid in cards_of(history, pid).uuids)
    return tuple(sorted((one for one in found if one.kind != "unknown"), key=lambda one: -(one.graphics or 0.0)))


def polls(history: History, pid: int) -> bool:
    """Whether the one card of a process, known to be its own, only polls."""
    cards = regimes(history, pid)
    return cards_of(history, pid).certain and len(cards) == 1 and cards[0].polls


def _fresh(history: History, series: list[Seen[R]], interval_seconds: float) -> list[Seen[R]]:
    allowed = max(STALE_SECONDS, STALE_INTERVALS * interval_seconds)
    return series if series and history.at - series[-1].at <= allowed else []


def kind_of(look: r.GpuActivity) -> str:
    """What a card did in one interval: ``work``, ``wait``, ``spin``, ``idle`` or ``unknown``."""
    if look.graphics is None:
        return "unknown"
    if look.graphics <= IDLE or (look.graphics < BUSY and look.sm_active == 0.0):
        return "idle"  # a context that begins, somebody else's say, takes 1 to 6 % of it, and no multiprocessor
    if look.graphics >= RESIDENT and flat(look):
        return "spin"
    return "work" if look.graphics >= BUSY else "wait"


def _classed(
    uuid: str, looks: list[tuple[float, str]], graphics: Iterable[float | None], sure: float, source: str
) -> Regime:
    shares = list(graphics)
    resident = mean(shares)
    kinds = [kind for _, kind in looks]
    idle, spinning = (kinds.count(kind) / len(kinds) for kind in ("idle", "spin"))
    if resident is None:
        return Regime(uuid)
    if spinning >= MOST_LOOKS and kinds[-1] == "spin":
        kind = "spin"
    elif idle >= MOST_LOOKS or resident <= IDLE:
        kind = "idle"
    else:
        kind = "work" if resident >= BUSY else "wait"
    return Regime(
        uuid,
        kind,
        sure,
        source,
        seconds=looks[-1][0] - looks[0][0],
        graphics=resident,
        spinning=spinning,
        returns=returns(looks),
        pauses=sum(kind == "idle" for kind, _ in groupby(kinds)),
        full=mean(share for share, (_, kind) in zip(shares, looks, strict=True) if kind != "idle"),
    )


def _with_shares(found: Regime, activities: list[Seen[r.GpuActivity]], samples: list[Seen[r.GpuSample]]) -> Regime:
    def share(of: Callable[[r.GpuActivity], float | None]) -> float | None:
        return weighted((of(one.reading), one.reading.interval_seconds) for one in activities)

    pcie = (share(lambda a: a.pcie_received_mib_per_second), share(lambda a: a.pcie_sent_mib_per_second))
    nvlink = (share(lambda a: a.nvlink_received_mib_per_second), share(lambda a: a.nvlink_sent_mib_per_second))
    arithmetic = (share(lambda a: a.fp32), share(lambda a: a.fp16), share(lambda a: a.fp64))
    return replace(
        found,
        graphics=found.graphics if found.source == "nvml" else share(lambda a: a.graphics),
        computes=found.computes
        or any(used is not None and used > FLAT for used in arithmetic)
        or (share(lambda a: a.integer) or 0.0) > ASKING_INTEGER,
        sm_active=share(lambda a: a.sm_active),
        occupancy=share(lambda a: a.sm_occupancy),
        tensor=share(lambda a: a.tensor),
        dram=share(lambda a: a.dram),
        fp32=arithmetic[0],
        fp64=arithmetic[2],
        pcie_mib_per_second=max((rate for rate in pcie if rate is not None), default=None),
        pcie_each_way_mib_per_second=min((rate for rate in pcie if rate is not None), default=None),
        nvlink_mib_per_second=max((rate for rate in nvlink if rate is not None), default=None),
        memory_utilisation=mean(one.reading.memory_utilisation for one in samples),
        power_watts=mean(one.reading.power_watts for one in samples),
        sm_clock_mhz=mean(one.reading.sm_clock_mhz for one in samples),
    )


def weighted(values: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of the known ones, each with the time that it stands for; None for none."""
    known = [(value, weight) for value, weight in values if value is not None and weight > 0.0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None for none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
