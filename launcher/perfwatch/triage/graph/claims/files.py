"""Locks on files, and files that a thread polls for."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Basis, Kind, Resource, Role, Task
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def file_lock(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The kernel lists the holders of a lock, and what processes outside of the job that hold it have started."""
    end = end_of(edge)
    why = "" if end.others else "the holder is not known"
    if (
        node.pid in end.others
    ):  # of an opening that its children have inherited the kernel names the process that locked it
        why = "a process that it started may have inherited the lock"
    resource = Resource(Kind.FILE_LOCK, ("lock", end.detail or task.key), complete=not why, why=why)
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
        if end.descriptor is not None and pid not in built.job.members:
            for started in end.descriptor.holders_started:
                built.graph.claim(built.process(started), resource, Role.MAY_PROVIDE, Basis.KERNEL)
    if node.pid in end.others:
        built.claim_descendants(resource, node.pid)
    task.waits = (resource,)


def awaited_file(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Any process may make a file: threads and children of this one and the other ranks are only the likely ones."""
    resource = Resource(
        Kind.FILE,
        ("file", end_of(edge).detail or task.key),
        complete=False,
        why="any process may make the file",
        strangers=True,
        basis=Basis.TEXT,
    )
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    built.claim_descendants(resource, node.pid)
    built.claim_ranks(resource)
    built.claim_ranks_at_work(resource)
    task.waits = (resource,)
