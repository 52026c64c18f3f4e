"""Waits of which the kind is unknown: in native code, or of a thread that could not be sampled. They are never complete."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import NOT_SAMPLED, Builder
from perfwatch.triage.graph.model import Activity, Basis, Fate, Kind, Prospect, Resource, Role, Task, Unread
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.moving.work import work_of
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node

NO_STACK = Unread("its stack was not read")


def unknown(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Other threads and children may release it, and so may what cannot be seen."""
    why = edge.waits_for if node.stack is not None else NOT_SAMPLED if node.thread is None else NO_STACK
    resource = Resource(Kind.UNKNOWN, task.key, complete=False, why=why, basis=Basis.ELIMINATION)
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    built.claim_descendants(resource, node.pid)
    built.claim_pair_holders(resource, node)
    works = work_of(built.history, node.pid).sign if node.thread is None else 0.0
    if works >= SIGN_OF_LIFE:  # of whichever of its threads
        leaf = built.lives(("work", node.pid), works, f"pid {node.pid} works")
        built.graph.claim(leaf, resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    task.waits = (resource,)


def other(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Another wait, of a thread that may move now and then, and does more than poll."""
    works = seen.work.sign
    if node.motion.frozen is False and (seen.state is not Activity.POLLS or works >= SIGN_OF_LIFE):
        task.fate = Fate(Prospect.LIVE, works=works, why="it moves now and then")
    else:
        unknown(built, task, node, edge, seen)
