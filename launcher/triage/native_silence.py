"""A training thread that waits in native code while nothing of its process works: for whom it waits, nobody can tell from outside.

A queue of C++ that nobody fills, a peer that an RPC library has lost, a lock of a library that one of its threads took along: from
outside they look like a long request of which no byte has come yet. So it is given the full patience, and never called sure.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.hang import hung, temporal, who
from perfwatch.triage.native_waits import called_from, in_kernel
from perfwatch.triage.verdict import Alternative, Outcome
from perfwatch.triage.working import goes_on

CAUSE = "deadlocked_locks"
CEILING = 0.78  # who would answer is not known


def worked_for(case: Case, chain: Chain) -> bool:
    """Whether anything works for a thread that waits in native code; a native thread that waits for a disk does, be it unmeasured."""
    return goes_on(case, chain) or in_kernel(case.history, chain.end.node.pid)


def silent_in_native_code(case: Case, chain: Chain) -> Outcome:
    """That a thread waits in native code for what does not come; None while anything works for it."""
    node = chain.end.node
    if worked_for(case, chain):
        return None
    return hung(
        case,
        CAUSE,
        chain,
        owner="unknown",
        summary=f"{who(chain)} waits in {called_from(chain.end)}, for what cannot be seen; nothing that might bring it works: "
        "no other thread of its process, and no process that it started",
        patience=temporal(case),
        ceiling=CEILING,
        alternatives=(Alternative(cause="downloading", refuted_by="no byte passes on its connections"),),
        next=(f"py-spy dump --native --pid {node.pid}",),
    )
