"""Edges to other processes: DataLoader workers, pools, subprocesses, joined processes.

Each function returns what is waited for in words, the threads to follow, and the end where there is none to follow.
"""

from perfwatch.probes import readings as r
from perfwatch.triage.frames import any_tag, show, tags
from perfwatch.triage.history import History
from perfwatch.triage.job import Job, Member
from perfwatch.triage.motion import dominant, python_threads
from perfwatch.triage.node import End, Node, node_of

Found = tuple[str, tuple[Node, ...], End | None]


def loader(history: History, job: Job, node: Node) -> Found:
    """The main thread waits for a batch: which worker has not delivered?"""
    members = [m for m in job.children(node.pid) if m.role == "worker"]
    return _among(history, job, node, members, "DataLoader worker")


def pool_members(job: Job, node: Node) -> list[Member]:
    """Processes that may work for a pool of this process."""
    return [m for m in job.children(node.pid) if m.role in ("pool_worker", "child") and m.process.python]


def pool(history: History, job: Job, node: Node) -> Found:
    """The thread waits for a result of a pool."""
    inside = _thread_pool(history, job, node)
    members = pool_members(job, node)
    if inside and not members:
        return "a thread of its pool", inside, None
    return _among(history, job, node, members, "pool worker")


def _thread_pool(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    nodes = [node_of(history, job, node.pid, tid) for tid in python_threads(history, node.pid) if tid != node.tid]
    return tuple(
        n for n in nodes if any_tag(n.tags, "futures_worker", "pool_worker") and n.frame is not None and not _idle(n)
    )


def _among(history: History, job: Job, node: Node, members: list[Member], what: str) -> Found:
    dead = [m for m in members if not m.alive]
    alive = [node_of(history, job, m.pid) for m in members if m.alive]
    if dead and (not alive or all(_idle(worker) for worker in alive)):
        gone = node_of(history, job, dead[0].pid)
        return f"{what} {dead[0].pid}, which is gone", (), End("dead", gone)
    busy = [worker for worker in alive if not _idle(worker)]
    if busy:
        return f"{what} {_list(busy)}", tuple(busy), None
    feeder = _feeder(history, job, [node.pid, *(w.pid for w in alive)])
    if feeder is not None:
        return f"{feeder.name or 'the queue feeder'} of pid {feeder.pid}", (), End("feeder", feeder)
    if not alive:
        return f"a {what} (none is left)", (), End("dead", node, detail="no worker is left")
    return f"{what} {_list(alive)}, all idle", (), End("idle", node, others=tuple(w.pid for w in alive))


def _list(nodes: list[Node]) -> str:
    shown = ", ".join(str(n.pid) for n in nodes[:4])
    return shown + (" ..." if len(nodes) > 4 else "")


def _idle(worker: Node) -> bool:
    """A worker that waits for its next task has nothing to deliver."""
    if worker.state in ("T", "t", "D"):
        return False
    asks = any_tag(worker.tags, "mp_queue_get", "mp_lock", "queue_get") or (
        "futures_worker" in worker.tags and "thread_wait" in worker.tags
    )
    return asks and "fetch" not in worker.tags and not _own_code_inside(worker)


def _own_code_inside(worker: Node) -> bool:
    """Whether the worker's own task is on its stack, inside the loop that takes tasks."""
    if worker.stack is None:
        return True
    for frame in worker.stack.frames:
        here = tags(r.Stack(pid=0, tid=0, frames=(frame,)))
        if any_tag(here, "worker", "pool_worker", "futures_worker"):
            return False
        if not here and not frame.file.endswith(
            ("queues.py", "connection.py", "synchronize.py", "queue.py", "threading.py", "selectors.py")
        ):
            return True
    return any_tag(worker.tags, "worker", "pool_worker", "futures_worker") is False


def _feeder(history: History, job: Job, pids: list[int]) -> Node | None:
    """A queue's feeder or pin-memory thread that is at something else than waiting for work."""
    for pid in pids:
        for tid in python_threads(history, pid):
            stack = dominant(history, pid, tid)
            if stack is None or not any_tag(tags(stack.reading), "feeder", "pin_memory"):
                continue
            node = node_of(history, job, pid, tid)
            if (
                any_tag(node.tags, "feeder")
                and "thread_wait" in node.tags
                and len(node.stack.frames if node.stack else ()) <= 6
            ):
                continue  # waits for something to send
            if "pin_memory" in node.tags and "mp_queue_get" in node.tags:
                continue  # waits for the workers, like the main thread
            return node
    return None


def child(history: History, job: Job, node: Node) -> Found:
    """The thread waits for a subprocess: judge the child."""
    wanted = node.wait.child_pid if node.wait and node.wait.child_pid and node.wait.child_pid > 0 else None
    members = [m for m in job.children(node.pid) if m.role != "service" and (wanted is None or m.pid == wanted)]
    plain = [m for m in members if m.role in ("child", "pool_worker")] or members
    return _others(history, job, node, plain, "child")


def joined(history: History, job: Job, node: Node) -> Found:
    """The thread joins one or more processes."""
    return _others(history, job, node, [m for m in job.children(node.pid) if m.role != "service"], "process")


def _others(history: History, job: Job, node: Node, members: list[Member], what: str) -> Found:
    alive = [m for m in members if m.alive]
    if not alive:
        if members:
            return f"{what} {members[0].pid}, which is gone", (), End("dead", node_of(history, job, members[0].pid))
        return f"a {what} that could not be found", (), End("unknown", node)
    targets = tuple(node_of(history, job, m.pid) for m in alive)
    names = ", ".join(f"{m.pid} ({m.process.name})" for m in alive[:4])
    where = show(targets[0].frame)
    return f"{what} {names}" + (f" at {where}" if where else ""), targets, None
