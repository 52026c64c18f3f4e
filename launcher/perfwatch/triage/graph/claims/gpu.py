"""GPUs: a card that computes is work; one whose kernel moves nothing releases no wait."""

from perfwatch.triage.cards.gpu import kernels, regime
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import Activity, Basis, Fate, Key, Kind, Prospect, Resource, Role, Task
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def gpu(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if it is known which card it is. A loop that asks its card in each turn waits for its own end."""
    if _turns(built, task, node):
        task.waits = (Resource(Kind.LOOP, task.key, complete=False, why="the loop may end", basis=Basis.TEXT),)
        return
    uuid = end_of(edge).detail
    why = "" if uuid else "the card is not known"
    resource = Resource(Kind.GPU, ("gpu", uuid), complete=bool(uuid), why=why)
    if uuid:
        built.graph.claim(_card(built, uuid), resource, Role.PROVIDES, Basis.KERNEL)
    task.waits = (resource,)


def _turns(built: Builder, task: Task, node: Node) -> bool:
    """True if a training thread stays in one loop of one pass for a hang timeout: its card serves each turn, and no step comes."""
    if task.key not in built.starts.values():
        return False
    within = turns_within(built.history, node.pid, node.tid)
    if within is None or within.seconds < built.hang_timeout:
        return False
    built.loop(task.key, loop_of(built.history, node))
    return True


def _card(built: Builder, uuid: str) -> Key:
    seen, newest = regime(built.history, uuid), kernels(built.history, uuid)
    if seen.kind == "spin" and not newest.go_on:
        several = (built.case.job.world_size or len(built.case.ranks)) > 1
        known = newest.usual_known or (several and not seen.is_no_collective)
        sure = seen.source == "gpm" and not seen.computes and known  # counters: its tensor cores and memory are idle
        fate = Fate(Prospect.SETTLED if sure else Prospect.OPEN, Basis.KERNEL, why="its kernel moves nothing")
    elif seen.polls:
        fate = Fate(Prospect.OPEN, why="its kernel polls")
    else:
        fate = Fate(Prospect.LIVE, works=1.0, why="the card works")
    return built.leaf(("card", uuid), fate, Activity.CARD)
