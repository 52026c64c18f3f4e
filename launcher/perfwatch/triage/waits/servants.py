"""Threads that a library has for its own use, and that now and then are what is waited for after all."""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.node import Node, node_of
from perfwatch.triage.words.frames import inner_frames, package_of, tags_of

HAS_THREADS = "monitor"  # tag of libraries whose threads are servants of the program's
ASKS = frozenset({"thread_wait", "thread_join", "futures_wait", "queue_get"})


def asked_by_library(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    """The threads of a library, for one that waits inside of that library (``wandb.finish()``): what they do, it waits for."""
    if node.stack is None or node.inner.isdisjoint(ASKS):
        return ()
    inner = inner_frames(node.stack)
    libraries = {package_of(frame) for frame in inner if HAS_THREADS in tags_of(frame.function, frame.file)} - {None}
    return tuple(
        other
        for other in _beside(history, job, node)
        if other.stack is not None and any(package_of(frame) in libraries for frame in other.stack.frames)
    )


def queue_feeders(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    """The threads that write what was put into queues between processes, which a process joins before it ends."""
    return tuple(
        one
        for one in _beside(history, job, node)
        if "feeder" in one.tags and one.wait is not None and one.wait.kind == "write"
    )


def _beside(history: History, job: Job, node: Node) -> list[Node]:
    return [node_of(history, job, node.pid, tid) for tid in python_threads(history, node.pid) if tid != node.tid]
