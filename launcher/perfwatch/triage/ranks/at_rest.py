"""Whether a job stands because its ranks wait for each other, as far as stacks, cards and RAS tell, before any rank is asked itself.

To ask a rank's flight recorder leaves a line on the job's standard error that looks like a failure. So nobody is asked who may
be at work: not while the job starts, makes steps, evaluates or saves, nor while one rank is late.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.patience import wakes_soon
from perfwatch.triage.ranks.absence import in_collective
from perfwatch.triage.ranks.collectives import growing
from perfwatch.triage.ranks.different_calls import counted_apart
from perfwatch.triage.waits.chain import Chain


def at_rest(case: Case) -> bool:
    """Whether no rank here is seen at work, and at least one of them waits for others in a collective, or for a call of theirs."""
    if not case.ranks or any(one.kind == "moving" for one in case.progress.values()) or growing(case):
        return False
    if counted_apart(case) is not None:
        return True
    waiting = {pid for pid, chain in case.chains.items() if in_collective(case, chain)}
    return bool(waiting) and all(pid in waiting or _rests(case, pid, chain) for pid, chain in case.chains.items())


def _rests(case: Case, pid: int, chain: Chain) -> bool:
    """Whether a rank that is elsewhere stands, with what it waits for: a loader's worker that works is work."""
    return case.progress[pid].kind == "still" and chain.end.still is True and not wakes_soon(case, chain.end)
