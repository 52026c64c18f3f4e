"""Every Nth step waits long for data, the others not at all."""

from perfwatch.triage.case import Case
from perfwatch.triage.history import median, quantile
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.starving import Starving, starving
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack

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
    waits = found.profile.runs(lambda stack: "loader_wait" in tags(stack))
    long = [end - begin for begin, end in waits if _is_long(begin, end)]
    if len(long) < FEW_WAITS or sum(long) < LONG_SHARE * sum(end - begin for begin, end in waits):
        return None
    between = _between(case, found, waits)
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


def _is_long(begin: float, end: float) -> bool:
    return end - begin >= LONG_WAIT_SECONDS


def _between(case: Case, found: Starving, waits: list[tuple[float, float]]) -> float:
    """Steps for each long wait, from the first of these to the last: what was before they began is no burst.

    Without an agent a lower bound: how often the thread came to its optimizer, but for the steps that waited for a short while.
    """
    steps = case.steps(found.rank, found.profile.seconds)
    if steps is None or not steps.intervals:
        long = [wait for wait in waits if _is_long(*wait)]
        since, until = long[0][1], long[-1][0]
        sights = tuple(one for one in found.profile.sights if since <= one.at <= until)
        made = Profile(sights, until - since).turns(lambda stack: "optimizer" in tags(stack))
        short = sum(since <= begin < until and not _is_long(begin, end) for begin, end in waits)
        return (made - short) / (len(long) - 1)
    least = LONGER * (quantile(steps.intervals, 0.25) or 0.0)
    late = [index for index, interval in enumerate(steps.intervals) if interval >= least]
    return (late[-1] - late[0]) / (len(late) - 1) if len(late) >= FEW_WAITS else 0.0


RULES = (Rule(CAUSE, judge),)
