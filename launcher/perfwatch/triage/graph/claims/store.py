"""Keys of torch's store: any other rank can set them."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def store_key(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if the job has met, and every rank of it is seen."""
    met = end_of(edge).detail == "store" and built.job.covered and len(built.starts) > 1
    why = "" if met else "another rank may set the key"
    resource = Resource(Kind.STORE, ("store",), complete=met, why=why, basis=Basis.STACK)  # one for all that wait
    if built.graph.is_new(resource):
        for pid, start in built.starts.items():
            if built.edge_kind(start) != "rendezvous":
                built.graph.claim(built.rank(pid), resource, Role.PROVIDES, Basis.STACK)
    task.waits = (resource,)
