"""A thread that runs is LIVE, unless the loop that it runs in gives nothing: then it waits for the end of that loop."""

from perfwatch.triage.cards.gpu import unseen
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.claims.gpu import idle_card_seconds
from perfwatch.triage.graph.loops import loop_of
from perfwatch.triage.graph.model import Basis, Ends, Fate, Kind, Prospect, Resource, Task
from perfwatch.triage.moving.thresholds import RUNS_SHARE
from perfwatch.triage.waits.devices import in_sync, may_wait_unseen
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node


def running(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The training thread makes no step while it is in a loop; any other thread hands nothing over if its loop gives nothing."""
    loop = built.loop(task.key, loop_of(built.history, node))
    is_start = task.key in built.starts.values()
    is_native = end_of(edge).kind == "native" and loop.lines <= 1 and loop.ends is not Ends.ONE_CALL
    if is_start and is_native and (spun := _spins(built, task, node)) is not None:
        task.waits = (spun,)
        return
    may_turn_for_ever = loop.ends in (Ends.CONDITION, Ends.NEVER)
    gives_nothing = may_turn_for_ever and not loop.gives
    if may_turn_for_ever and not is_start and built.waited_seconds(node.pid) >= built.hang_timeout:
        gives_nothing = True  # whatever a turn of it may hand over, nothing has come of it
    takes_turns = (
        loop.ends is Ends.COUNTS or seen.work.cores < RUNS_SHARE
    )  # with items, or with requests: one may be lost
    if loop.ends is Ends.ONE_CALL or (takes_turns and not is_start and built.nothing_came_of(node.pid)):
        gives_nothing = True
    if is_native or not (is_start or gives_nothing):
        task.fate = Fate(Prospect.LIVE, works=seen.work.sign, why="it runs")
        return
    resource = Resource(Kind.LOOP, task.key, complete=False, why="the loop may end", basis=Basis.TEXT)
    task.waits = (resource,)
    if loop.tests_only or (gives_nothing and loop.ends is not Ends.ONE_CALL):
        built.claim_other_threads(resource, node, Basis.TEXT)
        built.claim_descendants(resource, node.pid)
        built.claim_ranks(resource)
    elif loop.ends is Ends.ONE_CALL:
        built.claim_descendants(resource, node.pid)


def _may_wait_for_a_card(built: Builder, node: Node) -> bool:
    """True if a thread may spin for a card of which it is not known whether it works for this process."""
    return unseen(built.history, node.pid) or may_wait_unseen(built.history, node)


def _spins(built: Builder, task: Task, node: Node) -> Resource | None:
    """What a thread waits for that uses a core in native code and gets no further: an idle card, or another rank."""
    if in_sync(built.history, node.stack) and idle_card_seconds(built.case, node.pid) is not None:
        why = "a host function may hold up its stream"
        resource = Resource(Kind.GPU, ("stream", node.pid), complete=False, why=why, basis=Basis.STACK)
    elif built.case.progress[node.pid].kind == "still" or _may_wait_for_a_card(built, node):
        why = "it may spin in native code"
        resource = Resource(Kind.NATIVE, task.key, complete=False, why=why, basis=Basis.ELIMINATION)
    else:
        return None
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    return resource
