"""A hang that another rule contradicts: of the very process that it blames, that one has seen work.

A safety net. A rule for hangs should ask for such work itself; where it does not, its place in the catalogue must not decide.
"""

from collections.abc import Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.moving.working import SETTLED
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.verdict import Finding, Level

# Rules that see bytes move. CPU time alone contradicts nothing: who spins in a collective uses a core as well.
SEES_DATA = ("checkpointing", "downloading", "waiting_on_work")
PLAIN = Level.HIGH  # confidence of such a finding from which the bytes are those of the process itself


def uncontradicted(case: Case, sure: Sequence[Finding]) -> list[Finding]:
    """Without the hangs whose culprit is seen at work, unless it is dead, stopped, or waits for what it holds up itself."""
    work = [one for one in sure if one.cause in SEES_DATA and one.confidence >= PLAIN]
    at_work = {pid for one in work for pid in _blamed(one)}
    return [one for one in sure if one.state != "hung" or at_work.isdisjoint(_blamed(one)) or _is_settled(case, one)]


def _blamed(finding: Finding) -> set[int]:
    return {pid for one in finding.culprits if (pid := one.worker_pid or one.pid) is not None}


def _is_settled(case: Case, finding: Finding) -> bool:
    """Whether the wait ends at something that no work beside it heals."""
    ends = [chain.end for chain in case.chains.values() if {chain.start.pid, chain.end.node.pid} & _blamed(finding)]
    return any(end.kind in SETTLED or (end.kind == "lock" and end.detail != OTHERS_MOVE) for end in ends)
