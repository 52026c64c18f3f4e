"""Processes as releasers, children and workers that have ended, idle pools, and ways that lead to other tasks."""

from dataclasses import replace

from perfwatch.triage.graph.activity import ThreadActivity, activity_of
from perfwatch.triage.graph.builder import NOT_SAMPLED, OUTSIDE, Builder, end_of
from perfwatch.triage.graph.model import Activity, Basis, Fate, Kind, Needs, Prospect, Resource, Role, Task, Unread
from perfwatch.triage.moving.motion import has_ended, python_threads
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.moving.work import work_of
from perfwatch.triage.waits.edges import SIGNAL_WAITS, Edge
from perfwatch.triage.waits.napping import polls_by_programs
from perfwatch.triage.waits.node import Node
from perfwatch_probes import readings as r

# by kind of edge: what is waited for
KINDS = {
    "loader": Kind.POOL,
    "pool": Kind.POOL,
    "child": Kind.CHILD,
    "join_process": Kind.CHILD,
    "supervised": Kind.CHILD,
    "pipe": Kind.PIPE,
    "socket": Kind.PIPE,
    "connection": Kind.SOCKET,
    "gil": Kind.GIL,
    "lock": Kind.LOCK,
    "rpc": Kind.CALL,
    "call": Kind.CALL,
    "peers": Kind.CALL,
    "remote": Kind.CALL,
    "gpu": Kind.GPU,
}
OF_ALL = ("join_process", "peers")  # edges of which all targets are needed


def process(built: Builder, task: Task, pid: int) -> None:
    """The main thread provides; its other threads and its children may. CPU time or bytes of the process are work."""
    member = built.job.members.get(pid)
    if member is not None and not member.alive:
        task.fate, task.activity = Fate(Prospect.SETTLED, why="it has ended"), Activity.GONE
        task.silence = built.since_end(pid)
        return
    sampled = built.is_sampled(pid)
    why = OUTSIDE if member is None else "" if sampled else NOT_SAMPLED
    polls = member is not None and polls_by_programs(built.case, member)
    why = "it polls" if polls else why
    resource = Resource(
        Kind.PROCESS, ("process", pid), complete=not why, why=why, strangers=why == OUTSIDE and not sampled
    )
    task.waits = (resource,)
    if polls:
        return
    if _is_stopped(built, pid):  # with all of its threads, whatever it used until then
        resource = replace(resource, complete=True, why="", strangers=False)
        task.waits = (resource,)
        built.graph.claim(built.thread(pid, pid), resource, Role.PROVIDES, Basis.KERNEL)
        return
    for child in built.job.children(pid):
        if child.alive and child.role not in ("service", "worker", "rank") and built.matters(child.pid):
            built.graph.claim(built.process(child.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if not sampled:
        return
    python = python_threads(built.history, pid)
    alive = {key[1] for key in built.history.of(r.Thread, pid) if not has_ended(built.history, *key)}
    tids = sorted({*alive, *python})
    for tid in [tid for tid in tids if not _listens(built, pid, tid)] or tids or [pid]:
        if tid == pid or tid in python or not python:  # without a stack it is not known which are of Python
            role = Role.PROVIDES if tid == pid else Role.MAY_PROVIDE
            built.graph.claim(built.thread(pid, tid), resource, role, Basis.KERNEL)
    works = work_of(built.history, pid, [tid for tid in tids if tid == pid or tid in python]).sign
    if works >= SIGN_OF_LIFE:
        leaf = built.lives(("work", pid), works, f"pid {pid} works")
        built.graph.claim(leaf, resource, Role.PROVIDES, Basis.KERNEL)


def _is_stopped(built: Builder, pid: int) -> bool:
    """True if a signal has stopped a process, and it is not continued again and again."""
    last = built.history.latest(r.Thread, pid, pid)
    if last is None or last.reading.state != "T":
        return False
    node = built.node(built.thread(pid, pid))
    seen = activity_of(built.case, node)
    return seen.state is Activity.STOPPED and not seen.recurrent


def _listens(built: Builder, pid: int, tid: int) -> bool:
    """True if a thread waits for new connections: it gives nothing to the tasks that are there."""
    seen = built.history.latest(r.Thread, pid, tid)
    return seen is not None and seen.reading.wait is not None and seen.reading.wait.kind == "accept"


def other_tasks(built: Builder, task: Task, node: Node, edge: Edge) -> None:
    """A wait whose releasers are known by functions of CPython, torch or Ray."""
    kind, needs = KINDS.get(edge.kind, Kind.UNKNOWN), Needs.ALL if edge.kind in OF_ALL else Needs.ANY
    signalled = node.wait is not None and node.wait.call in SIGNAL_WAITS
    why = "any process may send the signal" if signalled else ""
    resource = Resource(kind, (edge.kind, task.key), needs, complete=not signalled, why=why, basis=Basis.STACK)
    for target in edge.targets:
        same = target.pid == node.pid
        releaser = built.thread(target.pid, target.tid) if same else built.process(target.pid)
        built.graph.claim(releaser, resource, Role.PROVIDES, Basis.STACK)
    if kind in (Kind.PIPE, Kind.SOCKET):
        built.claim_arriving(resource, node)
    task.waits = (resource,)


def idle(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """An idle pool whose result is awaited makes none; a server without a request waits for the next one."""
    if edge.kind in ("pool", "loader"):
        task.waits = (Resource(Kind.POOL, task.key, basis=Basis.ELIMINATION),)
    else:
        task.waits = (Resource(Kind.TASKS, task.key, complete=False, why=Unread("nothing was asked of it")),)


def ended_child(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Its releaser has ended."""
    pid = end_of(edge).node.pid
    resource = Resource(Kind.CHILD, ("child", pid), basis=Basis.STACK)
    built.graph.claim(built.gone(pid), resource, Role.PROVIDES, Basis.STACK)
    task.waits = (resource,)
