"""Idle time of intervals, handed out to the lines that were seen in them, by expectation maximisation: see ``gpu_idle``."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

ROUNDS, SETTLED = 60, 0.002
PRIOR_SECONDS = 0.2  # a line that was hardly seen idles like the whole, until its own samples say otherwise


@dataclass
class Mixed:
    """One interval and the share of its samples by line."""

    seconds: float
    idle_seconds: float
    shares: dict[Hashable, float]


def explained(mixed: Sequence[Mixed]) -> tuple[dict[Hashable, float], float]:
    """By line: seconds in which the card idled, which sum to those of all intervals; and how far they explain each one's."""
    total = sum(one.seconds for one in mixed)
    overall = sum(one.idle_seconds for one in mixed) / total if total else 0.0
    keys = dict.fromkeys(key for one in mixed for key in one.shares)
    plain_idle, plain_busy = dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0)  # of intervals with a single line
    several = []
    for one in mixed:
        if len(one.shares) > 1:
            several.append(one)
            continue
        (key,) = one.shares
        plain_idle[key] += one.idle_seconds
        plain_busy[key] += one.seconds - one.idle_seconds
    rates = dict.fromkeys(keys, 0.5)
    for _ in range(ROUNDS):
        idle, busy = dict(plain_idle), dict(plain_busy)
        for one in several:
            _hand_out(one.idle_seconds, one.shares, rates, idle)
            _hand_out(one.seconds - one.idle_seconds, one.shares, {key: 1 - rates[key] for key in one.shares}, busy)
        before = rates
        known = {key: idle[key] + busy[key] + PRIOR_SECONDS for key in keys}
        rates = {key: (idle[key] + PRIOR_SECONDS * overall) / known[key] for key in keys}
        if max((abs(rates[key] - before[key]) for key in keys), default=0.0) < SETTLED:
            break
    varied = sum((one.idle_seconds - overall * one.seconds) ** 2 for one in mixed)
    left = sum(
        (one.idle_seconds - one.seconds * sum(share * rates[key] for key, share in one.shares.items())) ** 2
        for one in mixed
    )
    return idle, max(0.0, 1.0 - left / varied) if varied > 0 else 0.0


def _hand_out(
    seconds: float, shares: dict[Hashable, float], rates: dict[Hashable, float], into: dict[Hashable, float]
) -> None:
    """Seconds of an interval to the lines that were seen in it, by how likely each of them is to have had them."""
    weights = {key: share * rates[key] for key, share in shares.items()}
    total = sum(weights.values())
    for key, weight in weights.items():
        into[key] += seconds * (weight / total if total > 0 else shares[key])
