"""A pipe of which a process holds both ends: one thread of it reads what another one writes.

A ``multiprocessing.Queue`` serves threads as well as processes, and its feeder thread writes in the process of whoever put
something in. To the reader such a pipe is a queue between threads.
"""

from collections.abc import Iterable

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits import workers
from perfwatch.triage.waits.heartbeats import may_act
from perfwatch.triage.waits.node import End, Found, Node, node_of
from perfwatch.triage.waits.threads import OTHERS_MOVE, other_threads, worked_for
from perfwatch_probes import readings as r

COMPUTES = 0.2  # of a core


def writers(history: History, job: Job, node: Node, pipe: r.Descriptor, name: str) -> Found | None:
    """Who may write into a pipe that no other living process holds; None where that is nobody.

    Of the threads of its own process one that moves, or rests until a moment, is the end, as if it might release a lock. Else it
    was the last child that is gone; without one, threads that stand are followed to what they wait for.
    """
    others = _own(history, job, node, pipe)
    moving = [other for other in others if other.motion.frozen is not True or may_act(history, other)]
    gone = workers.gone(job, node)
    if gone and not moving:
        return f"pid {gone[-1]} to write to {name}", (node_of(history, job, gone[-1]),), None
    if not others:
        return None
    first = (moving or others)[0]
    told = f"thread {first.name or first.tid} of its own process to write to {name}"
    return (told, (), _by_one_of(node, moving)) if moving else (told, tuple(others), None)


def at_work(
    history: History, job: Job, node: Node, pipe: r.Descriptor, holders: Iterable[int], name: str
) -> Found | None:
    """The threads of its own process that compute, where other processes hold the write end as well and all of these stand.

    They may have inherited it only.
    """
    if not all(node_of(history, job, pid).motion.frozen is True for pid in holders):
        return None
    own = [one for one in _own(history, job, node, pipe) if (one.motion.run_share or 0.0) >= COMPUTES]
    if not own:
        return None
    return f"thread {own[0].name or own[0].tid} of its own process to write to {name}", (), _by_one_of(node, own)


def _by_one_of(node: Node, moving: list[Node]) -> End:
    return End("lock", node, others=tuple(one.tid for one in moving), detail=OTHERS_MOVE)


def _own(history: History, job: Job, node: Node, pipe: r.Descriptor) -> list[Node]:
    """Where the process holds the write end, too. Of a FIFO a reader keeps it that does not want to hear of its end."""
    mine = pipe.kind == "pipe" and node.pid in pipe.writers
    return worked_for(history, other_threads(history, job, node)) if mine else []
