"""What a thread waits for on an open file: a pipe, an eventfd, a connection, a file or its lock, a terminal, a key of the store.

Whatever holds the other end can release it. The far end of a connection is often on another host, so these are never complete.
"""

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.claims import locks, threads
from perfwatch.triage.graph.model import Basis, Elsewhere, Kind, Resource, Role, Task
from perfwatch.triage.graph.thresholds import BYTES_SECONDS
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES
from perfwatch.triage.moving.work import passed
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import EVENT_LOOP, End, Node, waited_on
from perfwatch.triage.waits.other_end import sends

ANY_PROCESS = "any process may open a FIFO"


# Pipes


def pipe(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete for a pipe whose ends the kernel lists; any process may open a FIFO."""
    end = end_of(edge)
    file = end.descriptor
    key = ("pipe", task.key if file is None else file.inode)
    why = _unseen_holder(end)
    resource = Resource(Kind.PIPE, key, complete=not why, why=why, strangers=why == ANY_PROCESS)
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    own = file is not None and file.kind != "fifo" and node.pid in (*file.writers, *file.readers)
    if own and not end.others:  # a reader opens a FIFO for writing so as not to meet its end
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)


def _unseen_holder(end: End) -> str:
    """What may hold the other end and is not seen. A pipe whose other end no process held would have ended the wait."""
    file = end.descriptor
    if file is None or file.kind == "fifo":
        return ANY_PROCESS
    if file.kind == "tty":
        return ""
    holders = file.writers if end.kind == "pipe_empty" else file.readers
    return "" if holders else "the holder of the other end is not seen"


# Eventfds


def unknown_or_eventfd(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if the kernel lists the holders (Linux 5.2), and nothing but Python threads acts for them. Else it is unknown."""
    files = waited_on(built.history, node)
    if len(files) != 1 or files[0].kind != "eventfd" or not files[0].writers:
        threads.unknown(built, task, node, edge, seen)
        return
    holders = [pid for pid in files[0].writers if pid != node.pid]
    why = locks.kernel_or_native_releaser(built, node)
    resource = Resource(Kind.EVENTFD, ("eventfd", task.key), complete=not why, why=why)
    for pid in holders:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)


# Files and their locks


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


# Connections


def connection(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The processes that hold the other end, and the bytes. A signal wakes an event loop too when a child ends."""
    end = end_of(edge)
    resource = Resource(
        Kind.SOCKET, task.key, complete=False, why=Elsewhere("the other end of a connection"), strangers=True
    )
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    if end.descriptor is not None and end.descriptor.socket is not None and node.pid in end.descriptor.socket.peer_pids:
        built.claim_other_threads(resource, node, Basis.ELIMINATION)  # the server is a thread of its own process
    if end.descriptor is None or end.descriptor.socket is None:  # the far end may be any process of the rank
        for member in built.job.of_rank(node.rank_pid or node.pid):
            if member.alive and member.pid != node.pid:
                built.graph.claim(built.process(member.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if end.descriptor is not None:
        fd = end.descriptor.fd
        if passed(built.history, node.pid, fd, BYTES_SECONDS) > 0:
            built.claim_bytes(resource, ("bytes", node.pid, fd), "bytes arrive")
        elif sends(end) is not None and passed(built.history, node.pid, fd, BYTES_SECONDS, sent=True) >= ARRIVING_BYTES:
            built.claim_bytes(resource, ("sent", node.pid, fd), "the other end takes what is sent")
    if EVENT_LOOP in node.inner:
        built.claim_descendants(resource, node.pid)
    task.waits = (resource,)


# Keys of torch's store: any other rank can set them, and before the ranks have met so can any client


def store_key(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete once the ranks have met, if all are seen: then they alone set the keys. Before, its clients are not known."""
    met = built.job.covered and bool(built.calls.by_pid)
    why = "" if met else "any client of the store may set the key"
    resource = Resource(
        Kind.STORE, ("store",), complete=met, why=why, basis=Basis.STACK, strangers=not met
    )  # one for all that wait
    if built.graph.is_new(resource):
        for pid, start in built.starts.items():
            if built.edge_kind(start) != "rendezvous":
                built.graph.claim(built.rank(pid), resource, Role.PROVIDES, Basis.STACK)
            else:  # another thread of it may set the key, or what it has started
                built.claim_other_threads(resource, built.node(start), Basis.ELIMINATION)
                built.claim_descendants(resource, pid)
    task.waits = (resource,)


# Terminals, drivers, disks: nothing of the job releases these


# by kind of end: the resource, and whether the job is known to hold no releaser
OUTER = {
    "input": (Kind.TERMINAL, True),
    "driver": (Kind.DRIVER, True),
    "storage": (Kind.DISK, False),
    "uninterruptible": (Kind.DISK, False),
}


def outer(built: Builder, task: Task, kind: str) -> None:
    """No task provides it."""
    resource, complete = OUTER[kind]
    why = "" if complete else "a disk may answer"
    task.waits = (Resource(resource, task.key, complete=complete, why=why),)
