"""What running under Nsight Compute costs a job, measured on its first steps.

A kernel that no window measures runs as fast as ever under ncu; what costs is the host's time around each call. So a step
without ncu can be no shorter than the time for which kernels are resident in a step with it, and ncu costs at most the rest
(where the job has its cards to itself).
"""

from collections.abc import Callable

from perfwatch.captures.nsight.ncu_session import KIND
from perfwatch.processes.armed import read_armed
from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.questions import cards_of, regimes
from perfwatch.watching.summary import WARM_UP_STEPS, Tally
from perfwatch_probes.agent_folder import AgentFolder

MEASURED_STEPS = 20
LOOKED_SECONDS = 5.0  # of looks at the card; half of that is enough where the steps began late in it
PATIENCE_SECONDS = 30.0  # for a card that does not tell


class FirstSteps:
    """Says once, of a job that runs under ncu, how long its first steps took and how much of that ncu can have cost.

    Args:
        place: the job's place, where ``run --arm ncu`` wrote that it did.
    """

    def __init__(self, place: AgentFolder) -> None:
        facts = read_armed(place).get(KIND)
        self._due = facts is not None and "attaches" not in facts  # ncu comes for a window alone
        self._since: float | None = None

    def told(self, tally: Tally, look: Callable[[], Case]) -> str:
        """The sentence, when enough steps were made; empty before that, after it, and for a job that is not under ncu."""
        counted = max(tally.steps.values(), default=0) - WARM_UP_STEPS
        if not self._due or counted < MEASURED_STEPS:
            return ""
        history = look().history
        self._since = history.at if self._since is None else self._since
        waited = history.at - self._since
        resident = _resident(history, tally, max(LOOKED_SECONDS, waited))
        step_seconds = tally.quantile(0.5)
        if step_seconds is None or (resident is None and waited < PATIENCE_SECONDS):
            return ""
        self._due = False
        return _sentence(step_seconds, counted, resident)


def _resident(history: History, tally: Tally, seconds: float) -> float | None:
    """Share of the time in which a kernel was resident on the busiest card of the job; None as long as it is not known.

    Nor is it where ranks share a card: the kernels of one hide how long the other's step is without any.
    """
    used = [uuid for pid in tally.steps for uuid in cards_of(history, pid).uuids]
    if len(tally.steps) > 1 and len(set(used)) < len(used):
        return None
    cards = [card for pid in tally.steps for card in regimes(history, pid, seconds)]
    known = [card.graphics for card in cards if card.graphics is not None and card.seconds >= LOOKED_SECONDS / 2]
    return max(known, default=None)


def _sentence(step_seconds: float, steps: int, resident: float | None) -> str:
    step = f"under ncu a step takes {duration(step_seconds, 3)} (p50 of {steps:,} steps)"
    if resident is None:
        return f"{step}, until the job ends"
    least = step_seconds * min(1.0, resident)
    return (
        f"{step}; kernels run for {resident:.0%} of the time, so a step without ncu takes {duration(least, 3)} at least, "
        f"and ncu costs at most {duration(step_seconds - least, 3)} a step until the job ends"
    )
