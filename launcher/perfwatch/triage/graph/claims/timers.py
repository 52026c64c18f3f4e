"""Sleeps, polls of a flag, and waits with a deadline of their own."""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import Activity, Acts, Basis, Ends, Fate, Kind, Prospect, Resource, Task
from perfwatch.triage.graph.thresholds import POLLING_SECONDS
from perfwatch.triage.moving.loops import Loop, loop_of
from perfwatch.triage.moving.thresholds import LATE_SECONDS, MEANT_SECONDS
from perfwatch.triage.waits.edges import SIGNAL_WAITS, Edge
from perfwatch.triage.waits.node import EVENT_LOOP, Node
from perfwatch.triage.words.code import next_try_seconds


def sleeping(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """A sleep for hours is settled; one that ends soon is due; a thread that polls waits for whatever it tests."""
    left = None if seen.until is None else seen.until - built.case.at
    if left is not None and left > MEANT_SECONDS:
        task.fate = Fate(Prospect.SETTLED, why="it sleeps for hours")
        return
    loop = loop_of(built.history, node)
    if left is None or (seen.state is Activity.POLLS and not _leads_on(loop, node)):
        built.loop(task.key, loop)
        signalled = node.wait is not None and node.wait.call in SIGNAL_WAITS
        why = Acts("a process that sends the signal") if signalled else "it polls"
        resource = Resource(Kind.FLAG, task.key, complete=False, why=why, basis=Basis.TEXT)
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
        built.claim_descendants(resource, node.pid)
        built.claim_ranks(resource)
        task.waits = (resource,)
        return
    rests = left + (node.motion.ran_ago_seconds or 0.0)
    next_try = next_try_seconds(built.case.history, node.thread, node.stack)
    again = next_try is not None and rests < built.case.patience_seconds
    task.fate = Fate(Prospect.DUE, until=seen.until or built.case.at, works=0.0 if again else 1.0, why="it sleeps")


def _leads_on(loop: Loop, node: Node) -> bool:
    """True if a thread that sleeps again and again gets somewhere: it counts its sleeps, or hands something over after each."""
    if node.wait is None or node.thread is None:
        return False
    total = (node.wait.remaining_seconds or 0.0) + (node.thread.ran_ago_seconds or 0.0)
    counts = total >= POLLING_SECONDS and loop.ends is Ends.COUNTS
    return counts or (loop.gives and loop.ends in (Ends.NEVER, Ends.COUNTS))


def own_deadline(built: Builder, task: Task, node: Node, seen: ThreadActivity, alone: bool) -> None:
    """A wait with a deadline of its own ends then, in its first round; in an event loop a timer may fire in any round.

    ``alone``: no other process takes part, so the deadline is what the wait is for.
    """
    wait = node.wait
    if task.fate is not None or wait is None or wait.kind == "sleep" or seen.until is None:
        return
    in_loop = EVENT_LOOP in node.inner and wait.remaining_seconds is not None
    if not in_loop and seen.state is not Activity.SLEEPS:
        return
    silent = seen.silence.seconds if seen.silence is not None else 0.0
    first = silent <= (wait.remaining_seconds or 0.0) + (node.motion.ran_ago_seconds or 0.0) + LATE_SECONDS
    if -LATE_SECONDS < seen.until - built.case.at <= MEANT_SECONDS and (first or in_loop):
        timer = Resource(Kind.TIMER, ("timer", task.key), until=seen.until, sure=1.0 if alone else 0.0)
        task.waits = (*task.waits, timer)
