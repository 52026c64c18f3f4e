"""Where a wait leads: from one blocked thread to the threads or processes that it waits for, or to the end of the chain.

What a thread waits for is told by its stack (torch's and CPython's own functions) and by its blocked system call (number, fd,
path, deadline). Names of wait channels differ between kernels and decide nothing here.
"""

from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage import polling, threads, workers
from perfwatch.triage.frames import any_tag, collective_name, show
from perfwatch.triage.history import History
from perfwatch.triage.job import Job
from perfwatch.triage.node import End, Node, node_of

RUNNING_SHARE = 0.5  # of a core: a thread above this is running whatever the instant says
NETWORK_STATES = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2")


@dataclass(frozen=True)
class Edge:
    """One step: either targets to follow, or the end."""

    kind: str
    waits_for: str
    targets: tuple[Node, ...] = ()
    end: End | None = None


def ending(kind: str, node: Node, waits_for: str, **facts: object) -> Edge:
    """The chain ends here."""
    return Edge(kind, waits_for, end=End(kind, node, **facts))  # type: ignore[arg-type]


def step(history: History, job: Job, node: Node) -> Edge:
    """Where the chain goes from this thread."""
    member = job.members.get(node.pid)
    if member is not None and not member.alive:
        return ending("dead", node, "nothing: the process is gone")
    if node.state in ("Z", "X"):
        return ending("dead", node, "nothing: the thread is gone")
    if node.state == "T":
        return ending("stopped", node, "SIGCONT: the process is stopped")
    if node.state == "t":
        return ending("traced", node, "its tracer")
    for look in (_by_library, _by_descriptor, _by_call):
        edge = look(history, job, node)
        if edge is not None:
            return edge
    return ending("unknown", node, "something that could not be seen")


def _by_library(history: History, job: Job, node: Node) -> Edge | None:
    """Waits that the stack names."""
    if "debugger" in node.tags and node.state != "R":
        return ending("input", node, "somebody at the debugger's prompt")
    if "loader_wait" in node.tags and node.role != "worker":
        return _edge_or_end(workers.loader(history, job, node), "loader", node)
    if "pool_wait" in node.tags or ("futures_wait" in node.tags and workers.pool_members(job, node)):
        return _edge_or_end(workers.pool(history, job, node), "pool", node)
    if "rendezvous" in node.tags:
        return ending("rendezvous", node, "the other ranks to appear")
    if "collective" in node.tags:
        return ending(
            "collective", node, collective_name(node.stack) or "a collective" if node.stack else "a collective"
        )
    if "backward" in node.tags and len(job.ranks) > 1 and node.motion.frozen is not False and _forever(node):
        return ending("collective", node, "the gradients' reduction", detail="backward")
    if "child_wait" in node.tags or (node.wait is not None and node.wait.kind == "child"):
        return _edge_or_end(workers.child(history, job, node), "child", node)
    if any_tag(node.tags, "mp_join", "spawn_join"):
        return _edge_or_end(workers.joined(history, job, node), "join_process", node)
    if "file_lock" in node.tags:
        return ending("file_poll", node, "a lock file", detail=polling.path_of(history, node))
    return None


def _edge_or_end(found: tuple[str, tuple[Node, ...], End | None] | None, kind: str, node: Node) -> Edge | None:
    if found is None:
        return None
    waits_for, targets, end = found
    return Edge(kind, waits_for, targets, end)


def _forever(node: Node) -> bool:
    return node.wait is not None and node.wait.kind == "futex" and node.wait.forever


def _by_descriptor(history: History, job: Job, node: Node) -> Edge | None:
    """Waits on an open file: what lies behind the descriptor decides."""
    wait = node.wait
    if wait is None:
        return None
    descriptors = [wait.fd] if wait.fd is not None else [p.fd for p in wait.polled]
    for fd in descriptors:
        seen = history.latest(r.Descriptor, node.pid, fd)
        if seen is None:
            continue
        edge = _behind(history, job, node, wait, seen.reading)
        if edge is not None:
            return edge
    return None


def _behind(history: History, job: Job, node: Node, wait: r.Wait, file: r.Descriptor) -> Edge | None:
    if file.kind == "tty":
        return ending("input", node, f"somebody to type on {file.target}", descriptor=file)
    if file.kind in ("pipe", "fifo"):
        return _pipe(history, job, node, wait, file)
    if file.kind == "socket" and file.socket is not None:
        inside = tuple(pid for pid in file.socket.peer_pids if pid in job.members and pid != node.pid)
        if inside:
            return Edge(
                "socket",
                f"pid {inside[0]} at the other end of {file.socket.local or 'a socket'}",
                _nodes(history, job, inside),
            )
        if wait.kind in ("accept", "poll") and file.socket.state == "LISTEN":
            return ending("network", node, f"somebody to connect to {file.socket.local}", descriptor=file)
        return ending(
            "network",
            node,
            f"{wait.call} from {file.socket.peer or 'a socket'}",
            descriptor=file,
            others=file.socket.peer_pids,
        )
    if wait.kind == "lock":
        return ending(
            "file_lock", node, f"a lock on {file.target}", descriptor=file, others=file.lock_holders, detail=file.target
        )
    if wait.kind in ("read", "write", "sync", "stat") and file.kind in ("file", "directory"):
        return ending(
            "storage",
            node,
            f"{wait.call} of {file.target} on {file.mount or 'a disk'}",
            descriptor=file,
            detail=file.target,
        )
    return None


def _pipe(history: History, job: Job, node: Node, wait: r.Wait, pipe: r.Descriptor) -> Edge:
    writing = wait.kind == "write" or any(p.fd == pipe.fd and p.events & 4 and not p.events & 1 for p in wait.polled)
    far = pipe.readers if writing else pipe.writers
    inside = tuple(pid for pid in far if pid in job.members and pid != node.pid and job.members[pid].role != "service")
    verb = "read" if writing else "write to"
    if inside:
        return Edge("pipe", f"pid {', '.join(map(str, inside))} to {verb} {pipe.target}", _nodes(history, job, inside))
    outside = tuple(pid for pid in far if pid != node.pid and pid not in job.members)
    gone = [member for member in job.children(node.pid) if not member.alive and member.process.python]
    if not writing and not outside and gone:
        return Edge("pipe", f"pid {gone[-1].pid} to write to {pipe.target}", _nodes(history, job, (gone[-1].pid,)))
    kind = "pipe_full" if writing else "pipe_empty"
    who = f"pid {outside[0]}" if outside else "somebody (nobody else holds the other end)"
    return ending(kind, node, f"{who} to {verb} {pipe.target}", descriptor=pipe, others=outside)


def _nodes(history: History, job: Job, pids: tuple[int, ...]) -> tuple[Node, ...]:
    return tuple(node_of(history, job, pid) for pid in pids)


def _by_call(history: History, job: Job, node: Node) -> Edge | None:
    """Waits told by the system call, the state and who owns the GIL."""
    wait = node.wait
    holder = threads.gil_holder(history, node)
    if holder is not None:
        return Edge("gil", f"the GIL, held by thread {holder}", (node_of(history, job, node.pid, holder),))
    if wait is not None and wait.kind == "open":
        kind = "pipe_empty" if wait.path and polling.is_fifo(history, node, wait.path) else "storage"
        return ending(kind, node, f"open of {wait.path}", detail=wait.path or "")
    if wait is not None and wait.kind in ("stat", "sync"):
        return ending("storage", node, f"{wait.call} of {wait.path or 'a file'}", detail=wait.path or "")
    if wait is not None and wait.kind == "lock":
        return ending("file_lock", node, f"a file lock ({wait.path or 'unknown file'})", detail=wait.path or "")
    if (wait is not None and wait.kind == "page_fault") or node.state == "D":
        return ending("uninterruptible", node, f"the kernel ({node.thread.wchan if node.thread else '?'})")
    if node.state == "R" or (node.motion.run_share or 0.0) > RUNNING_SHARE:
        kind = "native" if threads.without_gil(history, node) else "python"
        return ending(kind, node, "nothing: it runs")
    if wait is not None and wait.kind == "sleep":
        if polling.polls_a_file(history, node):
            return ending("file_poll", node, "a file to appear", detail=polling.path_of(history, node))
        left = "" if wait.remaining_seconds is None else f" (wakes in {wait.remaining_seconds:,.0f} s)"
        return ending("sleep", node, f"time to pass{left}", detail=show(node.frame) or "")
    if wait is not None and wait.kind in ("recv", "send", "connect", "accept"):
        return ending("network", node, f"{wait.call} on fd {wait.fd}")
    if wait is None or wait.kind in ("futex", "poll", "other"):
        waits_for, targets, end = threads.waits(history, job, node)
        return Edge("lock", waits_for, targets, end)
    return None
