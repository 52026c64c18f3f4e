"""The step times of one recording, as the agent counted them, without warm-up."""

from dataclasses import dataclass

from perfwatch.triage.history import History
from perfwatch.triage.job import Member
from perfwatch_probes import readings as r


@dataclass(frozen=True)
class StepTimes:
    """Of the rank that counted the most: ranks that train together are in step, and one of them stands for all.

    values: seconds, in the order of time. counted: steps of that rank, the warm-up included. The times are seconds since the
    session began, of the first and the last step that counts.
    """

    rank: int | None
    counted: int
    values: tuple[float, ...]
    first_at: float
    last_at: float


def step_times(history: History, ranks: tuple[Member, ...], warm_up: int) -> StepTimes | None:
    """None where nobody counted. ``warm_up``: so many first steps of the process are left out."""
    found = [times for rank in ranks if (times := _of_rank(history, rank, warm_up)) is not None]
    return max(found, key=lambda times: (len(times.values), -(times.rank or 0)), default=None)


def _of_rank(history: History, rank: Member, warm_up: int) -> StepTimes | None:
    series = history.series(r.Steps, rank.pid)
    if not series:
        return None
    values: list[float] = []
    first_at = last_at = series[0].at
    before = 0
    for seen in series:
        told = seen.reading
        fresh = zip(range(told.count, 0, -1), reversed(told.interval_seconds), strict=False)
        kept = [interval for step, interval in fresh if step > max(before, warm_up) and interval > 0.0]
        if kept and not values:
            first_at = seen.at
        if kept:
            last_at = seen.at
        values += reversed(kept)
        before = max(before, told.count)
    return StepTimes(rank.rank, before, tuple(values), first_at, last_at)
