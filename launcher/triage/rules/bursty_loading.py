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
from perfwatch.triage.history import median
from perfwatch.triage.rule import Cause
from perfwatch.triage.starving import Starving, starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("bursty_loading", "slow", "data", (Stack,))

LONG_WAIT_SECONDS = 0.2
FEW_WAITS = 3
LONG_SHARE = 0.5  # of all the waiting: where short waits make up most of it, the loader is too slow on average
STEPS_BETWEEN = 3.0  # turns of the loop for each long wait; two workers in lockstep are merely too slow


def judge(case: Case) -> Outcome:
    """Fires when long waits for data alternate with several steps without one."""
    found = starving(case)
    if not isinstance(found, Starving) or found.workers < 2:
        return None
    waits = [end - begin for begin, end in found.profile.runs(lambda stack: "loader_wait" in tags(stack))]
    long = [wait for wait in waits if wait >= LONG_WAIT_SECONDS]
    steps = case.steps(found.rank)
    turns = steps.advanced if steps is not None and steps.advanced else _optimizer_turns(found)
    if len(long) < FEW_WAITS or turns < STEPS_BETWEEN * len(long) or sum(long) < LONG_SHARE * sum(waits):
        return None
    return found.finding(
        case,
        CAUSE,
        summary=f"batches come in bursts: {len(long)} waits of {median(long) or 0:.1f} s, "
        f"and {turns / len(long):.0f} steps for each of them",
        evidence=(
            case.saw(
                "stack",
                f"pid {found.rank.pid}",
                "few long waits",
                f"{len(long)} waits of {median(long) or 0:.2f} s, {turns} steps",
                "waits of equal length",
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="most steps do not wait at all"),),
        next=("raise prefetch_factor or num_workers",),
    )


def _optimizer_turns(found: Starving) -> int:
    """A lower bound of the steps: how often the thread came to its optimizer."""
    return found.profile.turns(lambda stack: "optimizer" in tags(stack))
