"""Eventfds: a counter that one task waits for and another one raises, between the threads and processes that hold it."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.claims import locks, native
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node, waited_on


def unknown_or_eventfd(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if the kernel lists the holders (Linux 5.2), and nothing but Python threads acts for them. Else it is unknown."""
    files = waited_on(built.history, node)
    if len(files) != 1 or files[0].kind != "eventfd" or not files[0].writers:
        native.unknown(built, task, node, edge, seen)
        return
    holders = [pid for pid in files[0].writers if pid != node.pid]
    why = locks.kernel_or_native_releaser(built, node)
    resource = Resource(Kind.EVENTFD, ("eventfd", task.key), complete=not why, why=why)
    for pid in holders:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)
