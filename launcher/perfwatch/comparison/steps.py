"""The step times of one recording, as the agent counted them, without warm-up."""

import operator
from dataclasses import dataclass
from itertools import accumulate

from perfwatch.triage.history import History
from perfwatch.triage.job import Member
from perfwatch_probes import readings as r


@dataclass(frozen=True)
class StepTimes:
    """Of the rank that counted the most: ranks that train together are in step, and one of them stands for all.

    values: seconds, in the order of time; of a fast loop the newest of each reading alone. counted: steps of that rank, the warm-up
    included. clock: steps by number, and when each ended, in seconds since the session began; the last step of the warm-up is the
    first of them; empty where every step was warm-up.
    """

    rank: int | None
    counted: int
    values: tuple[float, ...]
    clock: tuple[tuple[int, float], ...]

    @property
    def first_at(self) -> float:
        """When the first step that counts began, in seconds since the session began."""
        return self.clock[0][1]

    @property
    def last_at(self) -> float:
        """When the last step ended, in seconds since the session began."""
        return self.clock[-1][1]


def step_times(history: History, ranks: tuple[Member, ...], warm_up: int) -> StepTimes | None:
    """None where no step was counted. ``warm_up``: so many first steps of the process are left out."""
    found = [times for rank in ranks if (times := _of_rank(history, rank, warm_up)) is not None]
    return max(found, key=lambda times: (len(times.values), -(times.rank or 0)), default=None)


def _of_rank(history: History, rank: Member, warm_up: int) -> StepTimes | None:
    series = history.series(r.Steps, rank.pid)
    if not series:
        return None
    values: list[float] = []
    clock: list[tuple[int, float]] = []
    before = 0
    for seen in series:
        told = seen.reading
        ended = seen.at - (told.step_ago_seconds or 0.0)
        fresh = zip(range(told.count, 0, -1), reversed(told.interval_seconds), strict=False)
        kept = [interval for step, interval in fresh if step > max(before, warm_up) and interval > 0.0]
        known = list(zip(range(told.count, before, -1), accumulate(kept, operator.sub, initial=ended), strict=False))
        clock += [(step, at) for step, at in reversed(known) if step >= warm_up and (not clock or at > clock[-1][1])]
        values += reversed(kept)
        before = max(before, told.count)
    return StepTimes(rank.rank, before, tuple(values), tuple(clock))
