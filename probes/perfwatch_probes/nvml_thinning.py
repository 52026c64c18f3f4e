"""Ten samples a second of each card are taken; while the job is calm, one a second leaves the sampler: their average.

The others are kept for half a minute and handed over when the job becomes suspect. No card has two samples at one time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perfwatch_probes.readings import GpuActivity, GpuSample, Reading

KEPT_SECONDS = 30.0
CALM_SECONDS = 1.0

Timed = tuple[float, Reading]  # CLOCK_MONOTONIC, reading

_AVERAGED = ("utilisation", "memory_utilisation", "power_watts", "sm_clock_mhz")
_NEWEST = tuple(name for name in GpuSample.__struct_fields__ if name not in (*_AVERAGED, "uuid"))
_WEIGHTED = tuple(name for name in GpuActivity.__struct_fields__ if name not in ("uuid", "interval_seconds", "others"))
_DECIMALS = 5


class Thinning:
    """Decides which samples go out now. ``full``: all; otherwise one a second and card."""

    def __init__(self) -> None:
        self.full = False
        self._kept: deque[Timed] = deque()
        self._waiting: list[Timed] = []
        self._due = 0.0

    def put(self, now: float, samples: Sequence[GpuSample]) -> list[Timed]:
        """Take the samples of one round; returns what is to be sent."""
        fresh: list[Timed] = [(now, one) for one in samples]
        if self.full:
            return fresh
        self._waiting += fresh
        while self._kept and self._kept[0][0] < now - KEPT_SECONDS:
            self._kept.popleft()
        if now < self._due:
            self._kept += fresh
            return []
        self._due = now + CALM_SECONDS
        waiting, self._waiting = self._waiting, []
        return list(thinned(waiting))

    def fill(self) -> list[Timed]:
        """What has not been told of the last half minute; from now on there will be full detail."""
        self.full = True
        kept = list(self._kept)
        self._kept.clear()
        self._waiting.clear()
        return kept

    def rest(self) -> None:
        """Full detail is no longer needed."""
        self.full = False


def thinned(readings: Iterable[Timed]) -> list[tuple[float, GpuSample | GpuActivity]]:
    """One sample and one activity per card for all of these, at the time of the last one.

    Power, clock and utilisation are averages; of everything else the last known value counts. Activity is averaged by time.
    """
    cards: dict[tuple[type, str], list[Timed]] = {}
    for at, one in readings:
        if isinstance(one, GpuSample | GpuActivity):
            cards.setdefault((type(one), one.uuid), []).append((at, one))
    return [
        (group[-1][0], _average([one for _, one in group]) if kind is GpuSample else _mean([one for _, one in group]))
        for (kind, _), group in cards.items()
    ]


def _average(samples: Sequence[Any]) -> GpuSample:
    changes: dict[str, Any] = {}
    for name in _AVERAGED:
        known = [value for one in samples if (value := getattr(one, name)) is not None]
        if known:
            changes[name] = round(sum(known) / len(known), _DECIMALS)
    if "sm_clock_mhz" in changes:
        changes["sm_clock_mhz"] = round(changes["sm_clock_mhz"])
    last: GpuSample = samples[-1]
    for name in _NEWEST:
        if getattr(last, name) is None:
            changes[name] = next((v for one in reversed(samples) if (v := getattr(one, name)) is not None), None)
    return msgspec.structs.replace(last, **changes)


def _mean(activities: Sequence[Any]) -> GpuActivity:
    changes: dict[str, Any] = {"interval_seconds": round(sum(one.interval_seconds for one in activities), 4)}
    last: GpuActivity = activities[-1]
    for name in _WEIGHTED:
        known = [(value, one.interval_seconds) for one in activities if (value := getattr(one, name)) is not None]
        if known:
            changes[name] = _by_time(known)
    others = {
        name: _by_time([(one.others[name], one.interval_seconds) for one in activities if name in one.others])
        for name in last.others
    }
    return msgspec.structs.replace(last, others=others, **changes)


def _by_time(values: Sequence[tuple[float, float]]) -> float:
    """The mean of (value, seconds)."""
    return round(sum(value * seconds for value, seconds in values) / sum(seconds for _, seconds in values), _DECIMALS)
