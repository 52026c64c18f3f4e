"""What a card does: its state (``Regime.kind``), how it is known (``Regime.source``), and how long its kernels take.

=========  =========================================================  ==================================
kind       what the card does                                         a thread that waits for it
=========  =========================================================  ==================================
work       it is busy nearly all the time, and data moves             will be served
wait       kernels come and go; in between it waits for the host      will be served
spin       one kernel is resident, and no data moves anywhere         may wait for ever (``kernels``)
idle       nothing is asked of it                                     waits for something else
unknown    it was not sampled lately, or too seldom
=========  =========================================================  ==================================

Independent of these, ``Regime.polls``: its kernel only looks whether something has come, as in a collective.

"Utilisation" says only that a kernel was resident: it reads 100 % for one that spins on a dead peer. The card's units (GPM, Hopper
and newer) tell the rest. Where they cannot be read, the driver's memory utilisation stands in (1.3 times the share of the bandwidth,
and 0 for everything that hangs), and is less sure.

Some samples of the units are no data. One that was torn reads all zero, and nothing of the memory. Counters that another profiler has
taken, or that stand still, read zero for as long as that lasts: no kernel is believed only while the driver's own utilisation or the
power does not say otherwise.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from perfwatch.triage.cards.whose import cards_of, mean, shared
from perfwatch.triage.history import History, R, Seen, median, once
from perfwatch.triage.moving.motion import LULLS
from perfwatch.triage.shares.thresholds import FEW_TIMES, LOST_SHARE, NEARLY_ALL, NOW_SECONDS
from perfwatch_probes import readings as r

# A kernel is resident. Measured on H200 unless stated otherwise.
IDLE = 0.02  # at or below it nothing is asked of the card (measured 0.0001 with a context)
IN_USE = 0.3
BUSY = 0.9  # above it the card hardly waits for the host (a healthy training reads 0.98 to 1.0)
RESIDENT = 0.95  # a kernel that never ends reads 1.0
ACTIVE = 0.5  # of the multiprocessors; a decoder that fills the card keeps 0.8 of them active

# Samples
FEW_SAMPLES_OF_A_CARD, FEW_SECONDS = 5, 3.0
FEW_LOOKS, ENOUGH_SECONDS = 3, 2.0  # at the least, or covered by them where they are long
STALE_INTERVALS = 2.0  # of its own: many slow cards are read less often
# Utilisation is of up to a second before it is read: a card that works and rests in turns may be sampled in its rests alone.
AROUND_SECONDS = 3.0
# Of the limit. Measured of 700 W: an empty context or a kernel that spins draws 0.19, training 0.8 and more.
AT_WORK_POWER = 0.3

# No data moves
FLAT = 0.0005  # measured 0.00000 of the memory's bandwidth in a stalled all_reduce and in a kernel that spins
UNUSED = (
    0.005  # of what a unit (tensor cores, memory, FP32) can do at most: at or below it nothing is computed or moved
)
# What blocks that wait for each other ask atomically is counted for the tensor cores too: two thirds of what is counted for the
# integers. Measured 0.0020 and 0.0029; 0.0102 and 0.0153 with all multiprocessors full of warps, with 0.00000 of the bandwidth
# and no floating point. A product needs its operands from memory.
WAITING_TENSOR = 0.02
# Measured 0.7 (our own questions), 11 while NCCL's watchdog asks after its events, 23 while another job of the host begins to use
# CUDA; 100 launches of kernels a second stay below 1.
FLAT_MIB_PER_SECOND = 30.0
# A process that begins to ask the driver (nvidia-smi, another perfwatch) moves 3 MiB: 34 MiB/s in a sample of 0.1 s, 1.0 to 1.35 times
# as much from the card as to it (two H100, fourteen askers beside). A copy goes one way.
ASKING_MIB_PER_SECOND = 130.0
ASKING_RATIO = (1.0, 1.4)
NOT_STORED = 0.00006  # of the memory's bandwidth: 300 MiB/s to the card's own memory
# A loop that only asks waits for each answer (0.0002 to 0.015); above it something may be counted.
ASKING_INTEGER = 0.05
MEMORY_IN_USE = 0.01  # of the time; NVML counts in whole percent

# A kernel that only looks whether something has come, also in host memory: few multiprocessors (0.01 to 0.26), no arithmetic,
# and over PCIe 69 MiB/s (a collective over sockets) to 116 (the same beside other programs on the card).
# A send that waits for its peer read 250 and, on another host, 1,530, a collective of two processes on one card 1,590 (with 0.00005
# of the memory's bandwidth for changing between them), of which nothing came to the card's own memory. A kernel that works on what
# lies in host memory stores nothing either, and reads ten times as much.
POLLING_SM, POLLING_MIB_PER_SECOND = 0.3, 300.0
UNSTORED_MIB_PER_SECOND = 6000.0  # of which nothing is stored: NOT_STORED

# Kernels
UNBROKEN = 0.9999  # of the time; between two kernels there are some microseconds, and one that never ends reads 1.0
GAP_SECONDS = 3.0  # between two samples: what happened in a longer one is not known
SIGHTING_SECONDS = 1.0
# A process that begins to use another card of the host halts this one's kernel for 0.7 ms, and stirs its link (measured on two H100).
# The processes of a card are listed once a second.
LISTED_SECONDS = 1.5
LONGER = 2.0  # times the longest pause between two pieces of work: the card is then not known to be given any more

WARPS_OF_AN_SM = 64.0  # of compute capability 8.0 and 9.0 (CUDA's programming guide, table of technical specifications)
FEWEST_WARPS = 2.5  # of a block of NCCL's: measured 3, 17 and 19 on H200; of endless kernels 1, 2, 4 to 64
SAME_FOOTPRINT = 0.02  # of the multiprocessors: ranks inside one collective are as alike (measured 0.182 and 0.182)
MOST_SMS = 0.5  # NCCL starts 64 blocks at most (MAXCHANNELS in its device.h), of 132 that an H200 has room for


@dataclass(frozen=True)
class Regime:
    """What one card did over a window. Shares are of time or of the unit's maximum, 0 to 1; None: not known.

    ``computes``: of a card that spins, whether its arithmetic is used all the same: that kernel may end yet.
    """

    uuid: str
    kind: str = "unknown"
    source: str = ""  # gpm, or nvml where that is missing
    seconds: float = 0.0  # over which it was sampled
    graphics: float | None = None  # a kernel was resident
    spinning: float = 0.0
    returns: int = 0  # of one that mostly idles: how often work came to it again, up to now
    paused_once: bool = False  # it idled in one piece and was full otherwise: it is between two phases
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

    @property
    def waiting(self) -> float:
        """Share of the time in which no kernel was resident; 0 when not known."""
        return 0.0 if self.graphics is None else max(0.0, 1.0 - self.graphics)

    @property
    def waits_for_launches(self) -> bool:
        """True if it waits between kernels, or idles and was given work again and again: the host is too slow in each step."""
        return (self.kind == "wait" and not self.paused_once) or (self.kind == "idle" and self.returns >= FEW_LOOKS)

    @property
    def units(self) -> float:
        """Share of its maximum of that unit which is used most: tensor cores, memory, FP32; 0 when not known."""
        return max(self.tensor or 0.0, self.dram or 0.0, self.fp32 or 0.0)

    @property
    def polls(self) -> bool:
        """True if the kernel on it only looks whether something has come."""
        unstored = self.dram is not None and self.dram <= NOT_STORED
        return (
            (self.graphics or 0.0) >= RESIDENT
            and self.sm_active is not None
            and self.sm_active <= POLLING_SM
            and self.units <= UNUSED
            and (self.nvlink_mib_per_second or 0.0) <= FLAT_MIB_PER_SECOND
            and (self.pcie_mib_per_second or 0.0) <= (UNSTORED_MIB_PER_SECOND if unstored else POLLING_MIB_PER_SECOND)
        )

    @property
    def is_no_collective(self) -> bool:
        """True if what it executes cannot be NCCL's: a thread block of fewer warps than NCCL starts, or blocks on most of its SMs."""
        if not self.sm_active or self.occupancy is None:
            return False
        return WARPS_OF_AN_SM * self.occupancy / self.sm_active < FEWEST_WARPS or self.sm_active > MOST_SMS

    def shown(self) -> str:
        """The shares that decide, as a line of evidence."""
        power = ("{:.0f} W", self.power_watts)
        if self.source == "nvml":
            memory = ("memory in use {:.0%}", self.memory_utilisation)
            return _said(("utilisation {:.0%}", self.graphics or 0.0), memory, power)
        nvlink = self.nvlink_mib_per_second
        return _said(
            ("graphics {:.0%}", self.graphics),
            ("SM {:.0%}", self.sm_active),
            ("tensor {:.0%}", self.tensor),
            ("DRAM {:.0%}", self.dram),
            ("NVLink {:,.0f} MiB/s", nvlink if (nvlink or 0.0) > FLAT_MIB_PER_SECOND else None),
            power,
        )


def _said(*parts: tuple[str, float | None]) -> str:
    """The values that are known, each in its words."""
    return ", ".join(text.format(value) for text, value in parts if value is not None)


def stands_out(card: Regime, cards: Sequence[Regime]) -> bool:
    """True if a card differs from the one in the middle of all of them."""
    levels = sorted(one.sm_active or 0.0 for one in cards)
    return abs((card.sm_active or 0.0) - levels[len(levels) // 2]) > SAME_FOOTPRINT


@dataclass(frozen=True)
class Kernels:
    """How long the kernels of a card take.

    ``usual_known``: the card was seen at work, kernel after kernel, before the newest one began. Without that nothing says how long a
    kernel of this job may take.
    """

    ended: int  # how many were seen to end
    since_seconds: float  # since the last of them, or since the card was first sampled
    longest_seconds: float  # between two of them
    usual_known: bool

    @property
    def go_on(self) -> bool:
        """True if one kernel after the other ends, and the newest has not lasted much longer than those before."""
        return self.ended >= 2 and self.since_seconds <= LULLS * self.longest_seconds + SIGHTING_SECONDS


# The state of a card


@once
def regime(history: History, uuid: str, seconds: float = NOW_SECONDS) -> Regime:
    """What a card did over the last ``seconds``."""
    samples = _fresh(history, history.series(r.GpuSample, uuid, seconds=seconds), 0.0)
    looks = activities(history, uuid, seconds)
    looks = _fresh(history, looks, looks[-1].reading.interval_seconds if looks else 0.0)
    if _enough([one.reading for one in looks]):
        kinds = [(one.at, _kind_of(one.reading)) for one in looks]
        found = _classed(uuid, kinds, [one.reading.graphics for one in looks], "gpm")
    elif len(samples) >= FEW_LOOKS:
        kinds = [(one.at, _rough_kind(history, one.reading)) for one in samples]
        found = _classed(uuid, kinds, [one.reading.utilisation for one in samples], "nvml")
        found = replace(found, computes=not all(_draws_little(history, one.reading) for one in samples))
    else:
        return Regime(uuid)
    return _with_shares(found, looks, samples)


def regimes(history: History, pid: int, seconds: float = NOW_SECONDS) -> tuple[Regime, ...]:
    """Of every card of a process that is known to do anything, the busiest first."""
    found = (regime(history, uuid, seconds) for uuid in cards_of(history, pid).uuids)
    return tuple(sorted((one for one in found if one.kind != "unknown"), key=lambda one: -(one.graphics or 0.0)))


def polls(history: History, pid: int) -> bool:
    """True if a process has one card, known to be its own, that only polls."""
    cards = regimes(history, pid)
    return cards_of(history, pid).certain and len(cards) == 1 and cards[0].polls


def saturated(history: History, pid: int, seconds: float) -> bool:
    """True if a card of this process is busy with real work nearly all the time: what the host loses then costs nothing."""
    return any(
        one.kind == "work"
        and one.waiting <= LOST_SHARE
        and one.sm_active is not None
        and one.sm_active >= ACTIVE
        and cards_of(history, pid).certain
        for one in regimes(history, pid, seconds)
    )


def unseen(history: History, pid: int) -> bool:
    """True if a process uses CUDA and nothing is known of what its cards do: a wait for one looks like work."""
    seen = history.latest(r.GpuBinding, pid)
    return seen is not None and seen.reading.cuda is True and not regimes(history, pid)


def spins_on(history: History, uuid: str) -> bool:
    """True if the newest kernel moves nothing and has lasted longer than any before it: it may never end."""
    return regime(history, uuid, SIGHTING_SECONDS).kind == "spin" and not kernels(history, uuid).go_on


def _enough(looks: Sequence[r.GpuActivity]) -> bool:
    return len(looks) >= FEW_LOOKS or sum(look.interval_seconds for look in looks) >= ENOUGH_SECONDS


def _fresh(history: History, series: list[Seen[R]], interval_seconds: float) -> list[Seen[R]]:
    """Nothing where the newest is too old: what a card did a while ago says nothing of now."""
    fresh = series and history.at - series[-1].at <= max(NOW_SECONDS, STALE_INTERVALS * interval_seconds)
    return series if fresh else []


def _kind_of(look: r.GpuActivity) -> str:
    """What a card did in one interval, by its units."""
    if look.graphics is None:
        return "unknown"
    if look.graphics <= IDLE or (look.graphics < BUSY and look.sm_active == 0.0):
        return "idle"  # a context that begins, perhaps of another job, takes 1 to 6 % of it, and no multiprocessor
    if look.graphics >= RESIDENT and flat(look):
        return "spin"
    return "work" if look.graphics >= BUSY else "wait"


def _rough_kind(history: History, look: r.GpuSample) -> str:
    """What a card does, by the driver's figures: the utilisation of its memory, or else its power, shows whether data moves."""
    if look.utilisation is None:
        return "unknown"
    if look.utilisation <= IDLE:
        return "idle"
    used = look.memory_utilisation
    if look.utilisation >= RESIDENT and (_draws_little(history, look) if used is None else used < MEMORY_IN_USE):
        return "spin"
    return "work" if look.utilisation >= BUSY else "wait"


def _draws_little(history: History, look: r.GpuSample) -> bool:
    """True if a card draws no more than one on which nothing is computed."""
    card = history.latest(r.Gpu, look.uuid)
    limit = card.reading.power_limit_watts if card is not None else None
    return limit is not None and look.power_watts is not None and look.power_watts < AT_WORK_POWER * limit


def _classed(uuid: str, looks: list[tuple[float, str]], shares: list[float | None], source: str) -> Regime:
    resident = mean(shares)
    kinds = [kind for _, kind in looks]
    idle, spinning = (kinds.count(kind) / len(kinds) for kind in ("idle", "spin"))
    if resident is None:
        return Regime(uuid)
    kind = "work" if resident >= BUSY else "wait"
    if spinning >= NEARLY_ALL and kinds[-1] == "spin":
        kind = "spin"
    elif idle >= NEARLY_ALL or resident <= IDLE:
        kind = "idle"
    pauses = sum(kind == "idle" for kind, _ in groupby(kinds))
    full = mean(share for share, kind in zip(shares, kinds, strict=True) if kind != "idle")
    return Regime(
        uuid,
        kind,
        source,
        seconds=looks[-1][0] - looks[0][0],
        graphics=resident,
        spinning=spinning,
        returns=_returns(looks),
        paused_once=pauses == 1 and (full or 0.0) >= BUSY,
    )


def _returns(looks: Sequence[tuple[float, str]]) -> int:
    """How often a card was given work after it had idled; 0 where it has idled for longer now than pauses lasted before."""
    begins = [at for (_, before), (at, now) in pairwise(looks) if before == "idle" and now not in ("idle", "unknown")]
    if len(begins) < 2 or looks[-1][0] - begins[-1] > LONGER * max(b - a for a, b in pairwise(begins)):
        return 0
    return len(begins)


def _with_shares(found: Regime, looks: list[Seen[r.GpuActivity]], samples: list[Seen[r.GpuSample]]) -> Regime:
    def share(of: Callable[[r.GpuActivity], float | None]) -> float | None:
        known = [(value, one.reading.interval_seconds) for one in looks if (value := of(one.reading)) is not None]
        total = sum(seconds for _, seconds in known)
        return sum(value * seconds for value, seconds in known) / total if total else None

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
    )


# Whether data moves


def flat(look: r.GpuActivity) -> bool:
    """True if no data moves: to or from the card's memory, the host, another card, or through the tensor cores."""
    links = (look.nvlink_received_mib_per_second, look.nvlink_sent_mib_per_second, *_of_copies(look))
    return (
        look.dram is not None
        and look.dram <= FLAT
        and ((look.tensor or 0.0) <= UNUSED or _asks_only(look))
        and all(rate is None or rate <= FLAT_MIB_PER_SECOND for rate in links)
    )


def _of_copies(look: r.GpuActivity) -> tuple[float | None, float | None]:
    """What crosses PCIe each way in MiB/s, but for what goes to and fro when a process asks the driver."""
    received, sent = look.pcie_received_mib_per_second, look.pcie_sent_mib_per_second
    if received and sent and sent <= ASKING_MIB_PER_SECOND and ASKING_RATIO[0] <= sent / received <= ASKING_RATIO[1]:
        return 0.0, 0.0
    return received, sent


def _asks_only(look: r.GpuActivity) -> bool:
    """True if what is counted for the tensor cores comes from blocks that ask atomically whether the others have come."""
    floating = (look.fp32, look.fp16, look.fp64)
    return (
        look.tensor is not None
        and look.integer is not None
        and look.tensor <= min(WAITING_TENSOR, look.integer)
        and look.dram is not None
        and look.dram <= NOT_STORED
        and all(used is not None and used <= FLAT for used in floating)
    )


# The samples that are data


def activities(history: History, uuid: str, seconds: float | None = None) -> list[Seen[r.GpuActivity]]:
    """The samples of a card's units that are data, oldest first; with ``seconds``, only those of the last so many."""
    looks = [
        one
        for one in history.series(r.GpuActivity, uuid, seconds=seconds)
        if not _no_kernel(one.reading) or not _contradicted(history, uuid, one)
    ]
    whole = [one for one in looks if one.reading.dram is not None]
    return whole or looks


def contradicted(history: History, uuid: str) -> bool:
    """True if the units lately reported nothing but that no kernel ran, and the driver reports that the card was at work."""
    return bool(history.series(r.GpuActivity, uuid, seconds=NOW_SECONDS)) and not activities(history, uuid, NOW_SECONDS)


def _no_kernel(look: r.GpuActivity) -> bool:
    return look.graphics is not None and max(look.graphics, look.sm_active or 0.0) <= IDLE


def _contradicted(history: History, uuid: str, look: Seen[r.GpuActivity]) -> bool:
    """True if around a sample no kernel was seen, and utilisation and power show all the while that the card was at work."""
    samples = _around(history.series(r.GpuSample, uuid), look)
    busy = [one for one in samples if (one.utilisation or 0.0) >= BUSY and one.power_watts is not None]
    if len(busy) < max(FEW_LOOKS, len(samples)) or any(_draws_little(history, one) for one in busy):
        return False
    looks = _around(history.series(r.GpuActivity, uuid), look)
    return _enough(looks) and all(map(_no_kernel, looks))


def _around(series: list[Seen[R]], look: Seen[r.GpuActivity]) -> list[R]:
    first = bisect.bisect_left(series, _start(look) - AROUND_SECONDS, key=lambda one: one.at)
    last = bisect.bisect_right(series, look.at + AROUND_SECONDS, key=lambda one: one.at)
    return [one.reading for one in series[first:last]]


# How long kernels take


@once
def kernels(history: History, uuid: str) -> Kernels:
    """From everything that was seen of a card."""
    looks = activities(history, uuid)
    if not looks:
        return _roughly(history, uuid)
    # When a process was first listed on another card; those of the first sample have begun before.
    firsts = (history.series(r.GpuProcess, *key)[0].at for key in history.entities(r.GpuProcess) if key[0] != uuid)
    halts = [at for at in firsts if at > looks[0].at]
    halted = {one.at for one in looks if any(0.0 <= at - _start(one) < LISTED_SECONDS for at in halts)}
    if (
        len(halts) <= FEW_TIMES
    ):  # where processes come and go all the time, each end of a kernel might be taken for a halt
        looks = [one for one in looks if _unbroken(one.reading) or one.at not in halted]
    if not looks:
        return Kernels(0, 0.0, 0.0, usual_known=False)
    ended = [one for one in looks if not _unbroken(one.reading)]
    of_others = shared(history, uuid)  # the kernels that end may be theirs
    began, longest = _start(looks[0]) if _unbroken(looks[0].reading) else looks[0].at, 0.0
    for earlier, later in pairwise(looks):
        if _start(later) - earlier.at > GAP_SECONDS:
            began = _start(later)
        elif not _unbroken(later.reading):
            # One that ended in this sample lasted no longer within it: a card that had nothing to do ran none.
            resident = later.reading.interval_seconds * min(1.0, later.reading.graphics or 0.0)
            longest = max(longest, _start(later) - began + resident)
        if not _unbroken(later.reading):
            began = later.at
    at_work = [one for one in ended if (one.reading.graphics or 0.0) > IDLE]
    usual_known = bool(at_work) and at_work[-1].at - _start(at_work[0]) >= NOW_SECONDS
    since = max(0.0, history.at - max(began, ended[-1].at if ended else began))
    return Kernels(0 if of_others else len(ended), since, longest, usual_known and not of_others)


def _roughly(history: History, uuid: str) -> Kernels:
    """Where the card's units cannot be read: since when it has moved nothing at full utilisation."""
    looks = history.series(r.GpuSample, uuid)
    began = looks[0].at if looks else history.at
    kinds = [(one.at, _rough_kind(history, one.reading)) for one in looks]
    others = [at for at, kind in kinds if kind != "spin"]
    at_work = [at for at, kind in kinds if kind in ("work", "wait")]
    usual_known = bool(at_work) and at_work[-1] - at_work[0] >= NOW_SECONDS
    return Kernels(0, history.at - max([began, *others]), 0.0, usual_known)


def _start(look: Seen[r.GpuActivity]) -> float:
    return look.at - look.reading.interval_seconds


def _unbroken(look: r.GpuActivity) -> bool:
    """True if one kernel was resident all the time, and moved nothing."""
    resident = look.graphics is not None and look.graphics >= (UNBROKEN if look.dram is not None else RESIDENT)
    return resident and flat(look)


# What it did earlier in this run


@once
def baseline(history: History, uuid: str, seconds: float) -> str:
    """What the card did at work until ``seconds`` ago, in words: "low" is relative to that, not to a number in a book."""
    until = history.at - seconds
    looks = [one.reading for one in activities(history, uuid) if one.at < until]
    at_work = [a for a in looks if (a.graphics or 0.0) >= IN_USE and (a.dram or 0.0) >= UNUSED]
    samples = [one.reading for one in history.series(r.GpuSample, uuid) if one.at < until]
    in_use = [one for one in samples if (one.utilisation or 0.0) >= IN_USE]
    watts = [one.power_watts for one in in_use if one.power_watts is not None and not _draws_little(history, one)]

    def middle(of: Callable[[r.GpuActivity], float | None]) -> float | None:
        known = [value for one in at_work if (value := of(one)) is not None]
        return median(known) if len(at_work) >= FEW_SAMPLES_OF_A_CARD else None

    known = _said(
        ("graphics {:.0%}", middle(lambda a: a.graphics)),
        ("tensor {:.0%}", middle(lambda a: a.tensor)),
        ("DRAM {:.0%}", middle(lambda a: a.dram)),
        ("NVLink {:,.0f} MiB/s", middle(lambda a: a.nvlink_received_mib_per_second) or None),
        ("{:.0f} W", median(watts) if len(watts) >= FEW_SAMPLES_OF_A_CARD else None),
    )
    return f"{known} earlier in this run" if known else ""


def idle_card_seconds(history: History, pid: int) -> float | None:
    """Seconds since any card of a process had a kernel; None if one has, or if that is not known."""
    cards = regimes(history, pid)
    owned = cards_of(history, pid)
    if not owned.certain or len(cards) < len(owned.uuids) or any(card.kind != "idle" for card in cards):
        return None
    return min((_idle_seconds(history, card.uuid) for card in cards), default=None)


def _idle_seconds(history: History, uuid: str) -> float:
    looks = activities(history, uuid)
    if looks:
        known = [(one.at, one.reading.graphics, one.reading.interval_seconds) for one in looks]
    else:
        known = [(one.at, one.reading.utilisation, 0.0) for one in history.series(r.GpuSample, uuid)]
    since = next((at for at, used, _ in reversed(known) if used is not None and used > IDLE), None)
    if since is None:
        since = known[0][0] - known[0][2] if known else history.at
    return max(0.0, history.at - since)
