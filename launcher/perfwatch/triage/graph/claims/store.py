"""Keys of torch's store: any other rank can set them, and so can any other client."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def store_key(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete once the ranks have met, if all are seen: then they alone set the keys. Before, its clients are not known."""
    met = built.job.covered and bool(built.calls.by_pid)
    why = "" if met else "any client of the store may set the key"
    resource = Resource(
        Kind.STORE, ("store",), complete=met, why=why, basis=Basis.STACK, strangers=not met
    )  # one for all that wait
    if built.graph.is_new(resource):
        for pid, start in built.starts.items():
            if built.edge_kind(start) != "rendezvous":
                built.graph.claim(built.rank(pid), resource, Role.PROVIDES, Basis.STACK)
            else:  # another thread of it may set the key, or what it has started
                built.claim_other_threads(resource, built.node(start), Basis.ELIMINATION)
                built.claim_descendants(resource, pid)
    task.waits = (resource,)
