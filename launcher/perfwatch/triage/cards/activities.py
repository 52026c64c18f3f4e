"""What the units of a card told: the one way to their readings, for all who judge.

Some looks are no data. One that was torn reads all zero, and of the memory nothing. And counters that somebody else has taken, or that
stand still, read zero for as long as that lasts: a card on which no kernel ran is believed only while the driver's own utilisation
or its power does not say otherwise. What is left out is missing, and the driver's word stands in for it.
"""

import bisect
from typing import Any

from perfwatch.triage.history import History, R, Seen
from perfwatch_probes import readings as r

NO_KERNEL = 0.02  # of the time: a card with a context and nothing to do reads 0.0001
FULLY_USED = 0.9  # utilisation: two witnesses of the same thing do not differ so much
# Of its power limit. H200, 700 W: an empty context or a kernel that spins draws 0.19, training 0.8 and more.
AT_WORK_POWER = 0.3
# Before and after: utilisation is of up to a second before it is read, and a card that works and rests in turns may be looked at in
# its rests alone, once a second, and be told as used.
AROUND_SECONDS = 3.0
FEW_LOOKS, ENOUGH_SECONDS = 3, 2.0  # at the least, or covered by them where they are long
LATELY_SECONDS = 5.0


def activities(history: History, uuid: str, seconds: float | None = None) -> list[Seen[r.GpuActivity]]:
    """The looks at the units of a card that are data, oldest first; with ``seconds``, only those of the last so many."""
    looks = [
        one
        for one in history.series(r.GpuActivity, uuid, seconds=seconds)
        if not _no_kernel(one.reading) or not _contradicted(history, uuid, one)
    ]
    whole = [one for one in looks if one.reading.dram is not None]
    return whole or looks


def contradicted(history: History, uuid: str) -> bool:
    """Whether all that the units told lately was that no kernel ran, and the driver says that the card was at work."""
    return bool(history.series(r.GpuActivity, uuid, seconds=LATELY_SECONDS)) and not activities(
        history, uuid, LATELY_SECONDS
    )


def _no_kernel(look: r.GpuActivity) -> bool:
    return look.graphics is not None and max(look.graphics, look.sm_active or 0.0) <= NO_KERNEL


def _contradicted(history: History, uuid: str, look: Seen[r.GpuActivity]) -> bool:
    """Whether around a look no kernel was seen at all, and utilisation and power say all the while that the card was at work."""
    card = history.latest(r.Gpu, uuid)
    limit = card.reading.power_limit_watts if card is not None else None
    samples = _around(history.series(r.GpuSample, uuid), look)
    if limit is None or len(samples) < FEW_LOOKS or not all(_at_work(one, limit) for one in samples):
        return False
    looks = _around(history.series(r.GpuActivity, uuid), look)
    enough = len(looks) >= FEW_LOOKS or sum(one.interval_seconds for one in looks) >= ENOUGH_SECONDS
    return enough and all(_no_kernel(one) for one in looks)


def _at_work(sample: r.GpuSample, limit_watts: float) -> bool:
    used, drawn = sample.utilisation or 0.0, sample.power_watts or 0.0
    return used >= FULLY_USED and drawn >= AT_WORK_POWER * limit_watts


def _around(series: list[Seen[R]], look: Seen[r.GpuActivity]) -> list[R]:
    began = look.at - look.reading.interval_seconds
    first = bisect.bisect_left(series, began - AROUND_SECONDS, key=_when)
    last = bisect.bisect_right(series, look.at + AROUND_SECONDS, key=_when)
    return [one.reading for one in series[first:last]]


def _when(seen: Seen[Any]) -> float:
    return seen.at
