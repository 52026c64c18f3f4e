"""A training thread that waits in native code while nothing of its process works: for whom it waits, nobody can tell from outside.

A queue of C++ that nobody fills, a peer that an RPC library has lost, a lock of a library that one of its threads took along: from
outside they look like a long request of which no byte has come yet. So it is given the full patience, and never called sure. Who
asks other machines for what they make (``ray.get``) may wait for hours, and nobody here sees them at work: that stays a suspicion.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.patience import temporal
from perfwatch.triage.waits.actors import ITS_NEXT_CALL
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.dismissal import ANSWER
from perfwatch.triage.waits.native_waits import called_from, in_kernel
from perfwatch.triage.waits.node import End
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Descriptor

CAUSE = "deadlocked_locks"
CEILING = 0.78  # who would answer is not known
CEILING_ELSEWHERE = ONE_SOURCE  # and may well be at work, on another machine
ALIVE_SECONDS = 30.0  # since a byte came: gRPC's signs of life come every ten


def silent_in_native_code(case: Case, chain: Chain) -> Outcome:
    """That a thread waits in native code for what does not come; None while anything works for it."""
    node = chain.end.node
    if in_kernel(case.history, node.pid):
        return None
    elsewhere = may_be_elsewhere(case, chain.end)
    return hung(
        case,
        CAUSE,
        chain,
        owner="unknown",
        summary=f"{who(chain)} waits {_for_what(chain.end)}; nothing that might bring it works: "
        "no other thread of its process, and no process that it started"
        + ("; who answers may be on another machine" if elsewhere else ""),
        patience=temporal(case),
        ceiling=CEILING_ELSEWHERE if elsewhere else CEILING,
        alternatives=(Alternative(cause="downloading", refuted_by="no byte passes on its connections"),),
        next=(f"py-spy dump --native --pid {node.pid}",),
    )


def _for_what(end: End) -> str:
    return f"for {ANSWER}" if end.detail == ANSWER else f"in {called_from(end)}, for what cannot be seen"


def may_be_elsewhere(case: Case, end: End) -> bool:
    """Whether a wait is for what others of a cluster make, and another machine keeps in touch; or for a call of nobody knows whom."""
    return end.detail == ITS_NEXT_CALL or ("remote_get" in end.node.inner and _in_touch(case, end.node.pid))


def _in_touch(case: Case, pid: int) -> bool:
    files = (case.history.latest(Descriptor, *key) for key in case.history.of(Descriptor, pid))
    known = ((one.reading.socket, case.at - one.at) for one in files if one is not None)
    remote = (
        (socket, age) for socket, age in known if socket is not None and _host(socket.local) != _host(socket.peer)
    )
    return any(
        socket.received_ago_seconds is not None and socket.received_ago_seconds + age <= ALIVE_SECONDS
        for socket, age in remote
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0]
