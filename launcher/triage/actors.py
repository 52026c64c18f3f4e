"""Actors of Ray between two calls: they keep nobody waiting, whoever would call them next has something else to do.

That is the driver, which Ray's own processes stand between; what it waits for may be made by other actors.
"""

from perfwatch.triage import threads
from perfwatch.triage.frames import is_user, own_frames, tags_of
from perfwatch.triage.history import History
from perfwatch.triage.job import Job, Member
from perfwatch.triage.node import NATIVE_WAIT, End, Node, node_of
from perfwatch.triage.workers import Found

ITS_NEXT_CALL = "its next call"  # detail of an end that is such an actor, of which nobody knows who would call it


def between_calls(node: Node) -> bool:
    """Whether a main thread waits in the loop that takes calls; in a call the program's own frames are inside of it."""
    inner = node.stack.frames[0] if node.stack is not None and node.stack.frames else None
    return node.tid == node.pid and inner is not None and "between_calls" in tags_of(inner.function, inner.file)


def caller(history: History, job: Job, node: Node) -> Found | None:
    """Where the wait of a rank for its next call leads: to a thread of its own that is at something, or to its driver."""
    if node.role != "rank" or not node.motion.frozen or not between_calls(node):
        return None
    others = threads.worked_for(history, threads.other_threads(history, job, node))
    own = tuple(other for other in others if other.stack is not None and any(map(is_user, own_frames(other.stack))))
    if own:
        return f"thread {own[0].name or own[0].tid}", own, None
    driver = _above(job, node)
    if driver is None:
        return ITS_NEXT_CALL, (), End(NATIVE_WAIT, node, detail=ITS_NEXT_CALL)
    return f"pid {driver.pid} to call it", (node_of(history, job, driver.pid),), None


def _above(job: Job, node: Node) -> Member | None:
    """The nearest living program above it that is neither Ray's own nor a rank."""
    here = job.members.get(job.members[node.pid].process.parent_pid)
    while here is not None and not (here.process.python and here.role not in ("service", "rank") and here.alive):
        here = job.members.get(here.process.parent_pid)
    return here
