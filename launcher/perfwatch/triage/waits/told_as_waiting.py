"""For what the training thread waits that somebody works for, as the beginning of a sentence."""

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.absence import in_collective
from perfwatch.triage.waits.asking import asks
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import NATIVE_WAIT, Node


def waits_for(case: Case, chain: Chain, node: Node) -> str:
    """The beginning of a sentence that ends with the process that works; whether for this wait, is told by some ends only."""
    end, pipe = chain.end, chain.end.descriptor
    what = f"data on {pipe.target} from " if end.kind == "pipe_empty" and pipe is not None else ""
    if end.kind == "pipe_full" and pipe is not None:
        what = f"room in the pipe {pipe.target}, whose reader is "
    if in_collective(case, chain):
        where = chain.awaited if end.kind == "collective" else "a collective"
        return f"the other ranks wait in {where} for rank {node.rank}, "
    if end.kind == "file_lock":
        what = f"a lock on {end.detail}, held by "
        if node.pid not in end.others:
            what += f"pid {', '.join(map(str, end.others[:3]))}, and that perhaps for "
    if "pool" in chain.through and node.pid != end.node.pid:
        what = "a pool, perhaps for "  # of whose workers several are at a task
    elif "call" in chain.through:
        what = "its next call, and that perhaps for "
    elif end.kind in ("file_poll", NATIVE_WAIT) or asks(case, chain):
        awaited = "what it asks for again and again" if asks(case, chain) else end.detail or chain.awaited
        bringer = "its child" if case.job.branch(node.pid, chain.start.pid) else f"rank {node.rank}"
        what = f"{awaited}, perhaps from {bringer}, "
    ranked = end.kind == "file_lock" and chain.start.rank is not None  # the one that holds it may be another rank
    return f"{f'rank {chain.start.rank}' if ranked else 'the training thread'} waits for {what}"
