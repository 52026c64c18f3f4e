"""A rank in ``torch.distributed.rpc.shutdown()``: it serves the others (a parameter server does nothing else) until all are there."""

from perfwatch.triage.history import History
from perfwatch.triage.job import Job, Member
from perfwatch.triage.node import Node, node_of
from perfwatch.triage.progress import training_thread
from perfwatch.triage.workers import Found

ENDS = "rpc_shutdown"  # tag of that function
SHOWN = 3


def not_yet_done(history: History, job: Job, node: Node) -> Found | None:
    """The ranks that have not come to it, which are at their work or hang; None where all are there, and it should end."""
    if ENDS not in node.inner:
        return None
    peers = [_trains(history, job, rank) for rank in job.ranks if rank.alive and rank.pid != node.pid]
    absent = tuple(peer for peer in peers if ENDS not in peer.inner)
    if not absent:
        return None
    names = ", ".join(f"rank {peer.rank}" if peer.rank is not None else f"pid {peer.pid}" for peer in absent[:SHOWN])
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"{names}{more} to be done with it", absent, None


def _trains(history: History, job: Job, rank: Member) -> Node:
    return node_of(history, job, rank.pid, training_thread(history, rank))
