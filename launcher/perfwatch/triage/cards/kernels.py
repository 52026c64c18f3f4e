"""When the kernels of a card come to an end: a card that spins is looked at for the moments in which it did not."""

from dataclasses import dataclass
from itertools import pairwise

from perfwatch.triage.cards.activities import activities
from perfwatch.triage.cards.flatness import flat
from perfwatch.triage.cards.residency import RESIDENT, seems_to_spin
from perfwatch.triage.history import History, Seen
from perfwatch.triage.moving.motion import LULLS
from perfwatch_probes import readings as r

UNBROKEN = 0.9999  # of the time; between two kernels there are some microseconds, and one that never ends reads 1.0
GAP_SECONDS = 3.0  # between two looks: what happened in a longer one is not known
SIGHTING_SECONDS = 1.0
# A process that begins to use another card of the host halts this one's kernel for 0.7 ms, and stirs its link (measured on two H100).
# Who uses a card is asked once a second.
LISTED_SECONDS = 1.5
FEW_HALTS = 3  # where others come and go all the time each end of a kernel might be taken for a halt


@dataclass(frozen=True)
class Kernels:
    """When a kernel was last seen to end on a card."""

    ended: tuple[float, ...]  # moments, in seconds since the session began
    since_seconds: float  # since the last of them, or since the card was first looked at
    longest_seconds: float  # between two of them

    @property
    def go_on(self) -> bool:
        """Whether one kernel after the other comes to its end, and the last one has not lasted much longer than those before."""
        return len(self.ended) >= 2 and self.since_seconds <= LULLS * self.longest_seconds + SIGHTING_SECONDS


def kernels(history: History, uuid: str) -> Kernels:
    """From everything that was seen of a card."""
    return history.once(("kernels", uuid), lambda: _kernels(history, uuid))


def _kernels(history: History, uuid: str) -> Kernels:
    looks = activities(history, uuid)
    if not looks:
        return _roughly(history, uuid)
    halts = _halts(history, uuid)
    looks = [
        one
        for one in looks
        if _unbroken(one.reading) or not any(0.0 <= at - _start(one) < LISTED_SECONDS for at in halts)
    ]
    if not looks:
        return Kernels((), 0.0, 0.0)
    ended = tuple(one.at for one in looks if not _unbroken(one.reading))
    began, longest = _start(looks[0]) if _unbroken(looks[0].reading) else looks[0].at, 0.0
    for earlier, later in pairwise(looks):
        if _start(later) - earlier.at > GAP_SECONDS:
            began = _start(later)
        elif not _unbroken(later.reading):
            longest = max(longest, _start(later) - began + _resident_seconds(later.reading))
        if not _unbroken(later.reading):
            began = later.at
    return Kernels(ended, max(0.0, history.at - max(began, ended[-1] if ended else began)), longest)


def _halts(history: History, uuid: str) -> tuple[float, ...]:
    """When a process was first listed on another card; whoever was there at the first look has begun before."""
    firsts = [history.series(r.GpuProcess, *key)[0].at for key in history.entities(r.GpuProcess) if key[0] != uuid]
    began = min((look.at for look in activities(history, uuid)), default=0.0)
    later = tuple(at for at in firsts if at > began)
    return later if len(later) <= FEW_HALTS else ()


def _roughly(history: History, uuid: str) -> Kernels:
    """Where the card's units cannot be seen: for how long it has drawn no power at full utilisation."""
    looks = seems_to_spin(history, uuid)
    others = [at for at, spins in looks if not spins]
    began = looks[0][0] if looks else history.at
    return Kernels((), history.at - max([began, *others]), 0.0)


def _start(look: Seen[r.GpuActivity]) -> float:
    return look.at - look.reading.interval_seconds


def _resident_seconds(look: r.GpuActivity) -> float:
    """The most that a kernel which ended in this look lasted within it: a card that had nothing to do ran none."""
    return look.interval_seconds * min(1.0, look.graphics or 0.0)


def _unbroken(look: r.GpuActivity) -> bool:
    """Whether one kernel was resident all the time, and moved nothing."""
    resident = look.graphics is not None and look.graphics >= (UNBROKEN if look.dram is not None else RESIDENT)
    return resident and flat(look)
