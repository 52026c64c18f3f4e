"""Pipes: whatever holds the other end can release the wait."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def pipe(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete for a pipe whose ends the kernel lists; any process may open a FIFO."""
    end = end_of(edge)
    file = end.descriptor
    named = file is None or file.kind == "fifo"
    key = ("pipe", task.key if file is None else file.inode)
    resource = Resource(Kind.PIPE, key, complete=not named, why="any process may open a FIFO" if named else "")
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    if file is not None and node.pid in (*file.writers, *file.readers) and not end.others:
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)
