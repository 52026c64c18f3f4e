"""A process that was forked while a thread of its parent held a lock: the copy of the lock is held by nobody who could release it."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.waits.asked_for import A_LOCK, awaited
from perfwatch.triage.waits.heartbeats import waits_forever
from perfwatch.triage.waits.node import End
from perfwatch.triage.waits.threads import other_threads

MADE_OTHERWISE = "multiprocess"  # in the command of what spawn and the fork server of multiprocess(ing) make


def forked_with_a_lock(case: Case, end: End) -> tuple[str, ...]:
    """What to do where a fork waits for a lock of its own process in which no other thread is left.

    Only its parent's threads can have taken it, before the fork, or this one itself.
    """
    node = end.node
    member = case.job.members.get(node.pid)
    if end.kind != "lock" or member is None or not waits_forever(node) or awaited(node) != A_LOCK:
        return ()
    if (node.wait is not None and node.wait.shared) or node.tid not in python_threads(case.history, node.pid):
        return ()
    parent = case.job.members.get(member.process.parent_pid)
    forked = parent is not None and parent.process.command == member.process.command
    if parent is None or not forked or any(MADE_OTHERWISE in part for part in member.process.command):
        return ()
    if other_threads(case.history, case.job, node):
        return ()
    return (
        f"pid {node.pid} is a fork of pid {parent.pid} and has no other thread: either a thread of pid {parent.pid} held the lock at "
        "the fork, and the copy stays locked (use spawn or forkserver), or it takes the lock twice itself (use an RLock)",
    )
