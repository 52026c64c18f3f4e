"""Ranks of ``torch.distributed.rpc``: who is in ``shutdown()`` serves the others, and calls are executed in threads of torch's."""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.moving.progress import training_thread
from perfwatch.triage.roles.job import Job, Member
from perfwatch.triage.waits.asked_for import A_REMOTE_CALL
from perfwatch.triage.waits.node import NATIVE_WAIT, End, Found, Node, node_of
from perfwatch.triage.waits.polling import source_of, waits_for_work

CALLED, CALLS = "rpc_call", "rpc_wait"  # tags of a thread that executes a call, and of one that waits for an answer
ANSWER = "the answer to a remote call"
ENDS = "rpc_shutdown"  # tag of that function
SHOWN = 3
TOGETHER_SECONDS = 0.5  # when each last ran is read to a few milliseconds


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


def remote_calls(history: History, job: Job, node: Node) -> Found | None:
    """Of a rank that waits for the answer to a call: the threads that execute one now, of those that move to them alone.

    For which of them, nobody sees; but a call whose answer is waited for at once has run since. The future of a call looks like
    that of a collective, but where others only serve.
    """
    asks = CALLS in node.inner or (waits_for_work(history, node) and _others_serve(history, job, node))
    if not asks or not node.motion.frozen:
        return None
    threads = (node_of(history, job, rank.pid, tid) for rank in job.ranks for tid in python_threads(history, rank.pid))
    calls = [one for one in threads if CALLED in one.tags and (one.pid, one.tid) != (node.pid, node.tid)]
    calls = [one for one in calls if CALLS not in node.inner or not _ran_before(one, node)]
    found = [one for one in calls if one.motion.frozen is False] or calls
    if not found and CALLS not in node.inner:
        return None
    end = None if found else End(NATIVE_WAIT, node, detail=ANSWER)
    return ANSWER if end else A_REMOTE_CALL, tuple(found), end


def _ran_before(one: Node, node: Node) -> bool:
    """Whether a thread has not run since another one fell asleep, by what the kernel remembers of both."""
    if one.thread is None or one.thread.ran_ago_seconds is None or node.thread is None:
        return False
    if node.thread.ran_ago_seconds is None:
        return False
    return one.thread_at - one.thread.ran_ago_seconds < node.thread_at - node.thread.ran_ago_seconds - TOGETHER_SECONDS


def may_ask(history: History, job: Job, node: Node) -> bool:
    """Whether a rank that waits for what looks like a lock may wait for an answer: the text of its line would tell."""
    return source_of(history, node) is None and _others_serve(history, job, node)


def _others_serve(history: History, job: Job, node: Node) -> bool:
    return any(ENDS in node_of(history, job, rank.pid).inner for rank in job.ranks if rank.pid != node.pid)


def _trains(history: History, job: Job, rank: Member) -> Node:
    return node_of(history, job, rank.pid, training_thread(history, rank))
