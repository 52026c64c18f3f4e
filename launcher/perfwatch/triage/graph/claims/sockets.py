"""Connections: the other end is often on another host, so they are never complete. Bytes that pass are work."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Basis, Elsewhere, Kind, Resource, Role, Task
from perfwatch.triage.graph.thresholds import BYTES_SECONDS
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES
from perfwatch.triage.moving.work import passed
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import EVENT_LOOP, Node
from perfwatch.triage.waits.other_end import sends


def connection(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The processes that hold the other end, and the bytes. A signal wakes an event loop too when a child ends."""
    end = end_of(edge)
    resource = Resource(
        Kind.SOCKET, task.key, complete=False, why=Elsewhere("the other end of a connection"), strangers=True
    )
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    if end.descriptor is not None and end.descriptor.socket is not None and node.pid in end.descriptor.socket.peer_pids:
        built.claim_other_threads(resource, node, Basis.ELIMINATION)  # the server is a thread of its own process
    if end.descriptor is None or end.descriptor.socket is None:  # the far end may be any process of the rank
        for member in built.job.of_rank(node.rank_pid or node.pid):
            if member.alive and member.pid != node.pid:
                built.graph.claim(built.process(member.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if end.descriptor is not None:
        fd = end.descriptor.fd
        if passed(built.history, node.pid, fd, BYTES_SECONDS) > 0:
            built.claim_bytes(resource, ("bytes", node.pid, fd), "bytes arrive")
        elif sends(end) is not None and passed(built.history, node.pid, fd, BYTES_SECONDS, sent=True) >= ARRIVING_BYTES:
            built.claim_bytes(resource, ("sent", node.pid, fd), "the other end takes what is sent")
    if EVENT_LOOP in node.inner:
        built.claim_descendants(resource, node.pid)
    task.waits = (resource,)
