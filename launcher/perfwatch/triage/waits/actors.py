"""Actors of Ray between two calls: they keep nobody waiting, whoever would call them next has something else to do.

That is the driver, which Ray's own processes stand between; what it waits for may be made by other actors. Who waits for what others
make (``ray.get``) waits for one that is in a call or a task now: for which one, nobody sees. So as long as any of them moves, it is
that; and an actor whose calls are coroutines may be at one without a trace of it, then nothing is said.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import Job, Member
from perfwatch.triage.roles.ray_train import RUNS
from perfwatch.triage.waits import threads
from perfwatch.triage.waits.node import NATIVE_WAIT, End, Found, Node, node_of
from perfwatch.triage.words.frames import any_tag, is_user, own_frames, tags, tags_of
from perfwatch_probes import readings as r

RAYLET = "raylet"  # the program of the process above all actors and tasks of a machine
REMOTE = "remote"  # kind of the edge from one that waits for what an actor or a task makes
SHOWN = 3
ITS_NEXT_CALL = "its next call"  # detail of an end that is such an actor, of which nobody knows who would call it


def between_calls(node: Node) -> bool:
    """Whether a main thread waits in the loop that takes calls; in a call the program's own frames are inside of it."""
    inner = node.stack.frames[0] if node.stack is not None and node.stack.frames else None
    return node.tid == node.pid and inner is not None and "between_calls" in tags_of(inner.function, inner.file)


def caller(history: History, job: Job, node: Node) -> Found | None:
    """Where the wait of a rank for its next call leads: to a thread of its own that is at something, or to its driver."""
    if node.role != "rank" or not node.motion.frozen or not between_calls(node):
        return None
    others = threads.worked_for(history, threads.other_threads(history, job, node))
    own = tuple(other for other in others if other.stack is not None and any(map(is_user, own_frames(other.stack))))
    if own:
        return f"thread {own[0].name or own[0].tid}", own, None
    driver = _above(job, node)
    if driver is None:
        return ITS_NEXT_CALL, (), End(NATIVE_WAIT, node, detail=ITS_NEXT_CALL)
    return f"pid {driver.pid} to call it", (node_of(history, job, driver.pid),), None


def makers(history: History, job: Job, node: Node) -> Found | None:
    """Where a wait for what others make leads: to the actors and tasks that are in a call now; of those that move to them alone."""
    if "remote_get" not in node.inner or not node.motion.frozen:
        return None
    calls = history.once(("calls of Ray",), lambda: _calls(history, job))
    if any(pid != node.pid for pid in calls.in_coroutines):
        return None
    at_work = [one for one in calls.nodes if one.pid != node.pid]
    found = [one for one in at_work if one.motion.frozen is False] or at_work
    if not found:
        return None
    pids = [str(pid) for pid in dict.fromkeys(one.pid for one in found)]
    return f"pid {' or '.join(pids[:SHOWN])} to return from a call", tuple(found), None


@dataclass(frozen=True)
class _Calls:
    """What the actors and tasks of a machine are at."""

    nodes: tuple[Node, ...]  # in a call, and not in one that waits for other ranks
    in_coroutines: tuple[int, ...]  # pids of those whose calls may be on no stack


def _calls(history: History, job: Job) -> _Calls:
    pids = serving(job)
    nodes = (one for pid in pids for one in _executing(history, job, pid))
    return _Calls(
        tuple(one for one in nodes if not any_tag(one.tags, "collective", "rendezvous")),
        tuple(pid for pid in pids if _in_coroutines(history, pid)),
    )


def serving(job: Job) -> tuple[int, ...]:
    """The living processes of a job in which Ray runs actors and tasks, not Ray's own."""
    return tuple(
        member.pid
        for member in job.members.values()
        if member.alive and member.process.python and member.role != "service"
        if (above := job.members.get(member.process.parent_pid)) is not None and _is_raylet(above)
    )


def _is_raylet(member: Member) -> bool:
    return bool(member.process.command) and member.process.command[0].rpartition("/")[2] == RAYLET


def _executing(history: History, job: Job, pid: int) -> Iterator[Node]:
    """The threads of an actor or a task that are in a call: the main one, or those that an actor of several threads has for it."""
    main = node_of(history, job, pid)
    if main.stack is not None and main.stack.frames and not between_calls(main):
        yield main
        return
    for tid in python_threads(history, pid):
        one = node_of(history, job, pid, tid)
        frames = own_frames(one.stack) if one.stack is not None and tid != pid else ()
        if any(map(is_user, frames)) and RUNS not in one.tags:  # a training that Ray was given is no call
            yield one


def _in_coroutines(history: History, pid: int) -> bool:
    """Whether a thread of an actor is in an event loop: what its calls wait for is on no stack."""
    stacks = (history.latest(r.Stack, *key) for key in history.of(r.Stack, pid) if key[1] != pid)
    return any(one is not None and "asyncio" in tags(one.reading) for one in stacks)


def _above(job: Job, node: Node) -> Member | None:
    """The nearest living program above it that is neither Ray's own nor a rank."""
    above = job.lineage(job.members[node.pid].process.parent_pid)
    return next(
        (one for one in above if one.process.python and one.role not in ("service", "rank") and one.alive), None
    )
