"""Pipes: whatever holds the other end can release the wait."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import End, Node

ANY_PROCESS = "any process may open a FIFO"


def pipe(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete for a pipe whose ends the kernel lists; any process may open a FIFO."""
    end = end_of(edge)
    file = end.descriptor
    key = ("pipe", task.key if file is None else file.inode)
    why = _unseen_holder(end)
    resource = Resource(Kind.PIPE, key, complete=not why, why=why, strangers=why == ANY_PROCESS)
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    own = file is not None and file.kind != "fifo" and node.pid in (*file.writers, *file.readers)
    if own and not end.others:  # a reader opens a FIFO for writing so as not to meet its end
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)


def _unseen_holder(end: End) -> str:
    """What may hold the other end and is not seen. A pipe whose other end no process held would have ended the wait."""
    file = end.descriptor
    if file is None or file.kind == "fifo":
        return ANY_PROCESS
    if file.kind == "tty":
        return ""
    holders = file.writers if end.kind == "pipe_empty" else file.readers
    return "" if holders else "the holder of the other end is not seen"
