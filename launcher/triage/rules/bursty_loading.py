"""Every Nth step waits long for data, the others not at all.

What it means
    All workers finish at the same moment and start again together, so batches come in bursts: one long wait, then as many short
    steps as there are workers.

How it is recognised
    The waits for data come in a rhythm: few long ones, with several steps without a wait in between.

What it is mistaken for
    A loader that is too slow on average: there every step waits.

What to do next
    A larger ``prefetch_factor`` or more workers.
"""

from perfwatch.probes.readings import Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import tags
from perfwatch.triage.history import median, quantile
from perfwatch.triage.rule import Cause
from perfwatch.triage.starving import Starving, starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("bursty_loading", "slow", "data", (Stack,))

LONG_WAIT_SECONDS = 0.2
FEW_WAITS, MANY_WAITS = 3, 6
BY_FEW = 0.75  # confidence: three in a few seconds may be how a loader that is too slow on average began
LONG_SHARE = 0.5  # of all the waiting: where short waits make up most of it, the loader is too slow on average
LONGER = 2.0  # times the steps that do not wait: it waited
STEPS_BETWEEN = 3.0  # turns of the loop for each long wait; two workers in lockstep are merely too slow


def judge(case: Case) -> Outcome:
    """Fires when long waits for data alternate with several steps without one."""
    found = starving(case)
    if not isinstance(found, Starving) or found.workers < 2:
        return None
    waits = [end - begin for begin, end in found.profile.runs(lambda stack: "loader_wait" in tags(stack))]
    long = [wait for wait in waits if wait >= LONG_WAIT_SECONDS]
    if len(long) < FEW_WAITS or sum(long) < LONG_SHARE * sum(waits):
        return None
    between = _between(case, found, len(long))
    if between < STEPS_BETWEEN:
        return None
    return found.finding(
        case,
        CAUSE,
        summary=f"batches come in bursts: {len(long)} waits of {median(long) or 0:.1f} s, "
        f"and {between:.0f} steps for each of them",
        evidence=(
            case.saw(
                "stack",
                f"pid {found.rank.pid}",
                "few long waits",
                f"{len(long)} waits of {median(long) or 0:.2f} s, {between:.1f} steps for each",
                "waits of equal length",
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="most steps do not wait at all"),),
        next=("raise prefetch_factor or num_workers",),
        ceiling=BY_FEW if len(long) < MANY_WAITS else 0.97,
    )


def _between(case: Case, found: Starving, waits: int) -> float:
    """Steps for each long one, from the first of these to the last: what was before they began is no burst.

    Without an agent a lower bound: how often the thread came to its optimizer.
    """
    steps = case.steps(found.rank, found.profile.seconds)
    if steps is None or not steps.intervals:
        return found.profile.turns(lambda stack: "optimizer" in tags(stack)) / waits
    least = LONGER * (quantile(steps.intervals, 0.25) or 0.0)
    long = [index for index, interval in enumerate(steps.intervals) if interval >= least]
    return (long[-1] - long[0]) / (len(long) - 1) if len(long) >= FEW_WAITS else 0.0
