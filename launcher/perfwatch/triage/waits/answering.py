"""Who answers: the threads at the other end of a connection between processes of the job."""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.heartbeats import parks
from perfwatch.triage.waits.node import Node, node_of
from perfwatch.triage.waits.threads import LEADING_TAGS, other_threads, worked_for
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes import readings as r


def facing(history: History, job: Job, socket: r.Socket, pids: tuple[int, ...]) -> Node | None:
    """The thread of these processes that waits to receive on the other end of a connection: it has nothing to answer."""
    if not (socket.local and socket.peer) and socket.peer_inode is None:
        return None  # of a socket without a name or a number the other end cannot be told
    for pid, tid in (key for one in dict.fromkeys(pids) for key in history.of(r.Thread, one)):
        seen = history.latest(r.Thread, pid, tid)
        wait = seen.reading.wait if seen is not None else None
        if wait is None or wait.fd is None or wait.kind not in ("recv", "read"):
            continue
        file = open_file(history, pid, tid, wait.fd)
        if file is not None and _is_far_end(file.reading, socket):
            return node_of(history, job, pid, tid)
    return None


def _is_far_end(file: r.Descriptor, socket: r.Socket) -> bool:
    """Whether an open file is the other end of a connection: the same addresses the other way round, or that very inode."""
    if socket.peer_inode is not None:
        return file.inode == socket.peer_inode
    other = file.socket
    return other is not None and (other.local, other.peer) == (socket.peer, socket.local)


def owing(history: History, job: Job, reader: Node) -> tuple[Node, ...]:
    """Of a process whose thread waits for requests, the other threads that may owe an answer: at work, or stuck in it."""
    receives = ("recv", "read", "accept", "poll")
    others = [
        other
        for other in other_threads(history, job, reader)
        if not any_tag(other.inner, *LEADING_TAGS) and (other.wait is None or other.wait.kind not in receives)
    ]
    at_work = [other for other in others if "queue_get" not in other.inner and not parks(history, other)]
    return tuple(worked_for(history, at_work or others))


def serving(history: History, job: Job, pids: tuple[int, ...]) -> tuple[Node, ...]:
    """Who answers in these processes: a main thread that waits for others or for visitors leaves that to threads of its own."""
    found: list[Node] = []
    for main in [node_of(history, job, pid) for pid in pids]:
        others: tuple[Node, ...] = ()
        if any_tag(main.inner, *LEADING_TAGS):
            others = tuple(worked_for(history, other_threads(history, job, main)))
        elif main.wait is not None and (main.wait.kind == "accept" or _keeps_the_door(main)):
            others = owing(history, job, main)
            if not python_threads(history, main.pid):
                continue  # without stacks nobody knows which of its threads has the visitor
        found += others or (main,)
    return tuple(found)


def _keeps_the_door(main: Node) -> bool:
    """Whether a thread polls for visitors in a server of the standard library's: most hand each of them to a thread."""
    polls = main.wait is not None and main.wait.kind == "poll"
    return polls and main.stack is not None and any(one.file.endswith("/socketserver.py") for one in main.stack.frames)
