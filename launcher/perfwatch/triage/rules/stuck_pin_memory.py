"""A batch is ready, but the thread that hands it over does not move."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("stuck_pin_memory", "hung", "data", (Thread, Stack))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a feeder or pin-memory thread that stands still."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind != "feeder" or not end.still or wakes_soon(case, end):
            continue
        forever = end.node.wait is not None and end.node.wait.forever
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} hands no batch over: it has not moved for {end.silent_seconds or 0:.0f} s while every worker is idle",
            patience=STRUCTURAL_SECONDS if forever or outlasts(case, end) else temporal(case),
            alternatives=(
                Alternative(cause="stuck_worker", refuted_by="every worker's main thread waits for its next task"),
            ),
            next=(f"py-spy dump --nonblocking --pid {end.node.pid}",),
        )
    return None


RULES = (Rule(CAUSE, judge),)
