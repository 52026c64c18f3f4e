"""Which process that a rank or its driver has started may answer, where the call that it waits in does not say so itself."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.working import called_beside, started_by
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import NATIVE_WAIT


def answered_by(case: Case, chain: Chain) -> tuple[int, ...]:
    """All of them for a wait in native code; for a connection, those at its other end (a tracker's service, say).

    A rank that waits for its next call: whoever would call it, and what that has started besides.
    """
    if "call" in chain.through:
        return (chain.end.node.pid, *called_beside(case, chain))
    if chain.end.kind == NATIVE_WAIT:
        return started_by(case, chain.start.pid)
    if chain.end.kind == "network":
        return tuple(pid for pid in chain.end.others if case.job.branch(pid, chain.start.pid) is not None)
    return ()
