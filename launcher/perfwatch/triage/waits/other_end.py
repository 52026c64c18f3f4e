"""The other end of a pipe or a connection: which way a thread waits there, and which process or thread uses that end.

A ``multiprocessing.Pipe`` that is made before a fork stays open in every process that is forked later. So the exit of the process that it
was made for closes nothing, and the reader is never told.
"""

from collections.abc import Iterable
from shlex import quote

from perfwatch.text import duration
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import STORE_THREAD, TICKS_PER_SECOND, Job, Member
from perfwatch.triage.waits import workers
from perfwatch.triage.waits.node import End, Found, Node, gives, node_of, threads_of, waited_on
from perfwatch.triage.waits.threads import LEADING_TAGS, may_act, other_threads, worked_for
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Socket

OPENING = ("SYN_SENT", "LISTEN")  # where poll's "writable" means that the connection is there
COMPUTES = 0.2  # of a core
AT_ONCE_TICKS = 100  # a hundredth of a second each: forks of one loop


def takes(socket: Socket) -> str:
    """What is waited for of the other end."""
    return f"{socket.peer or f'the other end of a {socket.family} socket'} to take what it sends"


def sends(end: End) -> Socket | None:
    """The connection on which the end of a chain waits to send; None where it waits for something else."""
    socket = end.descriptor.socket if end.descriptor is not None else None
    if socket is None or end.descriptor is None or end.node.wait is None or socket.state in OPENING:
        return None
    return socket if gives(end.node.wait, end.descriptor.fd) else None


def untaken(socket: Socket) -> str:
    """What the kernel counts on such a connection."""
    parts = [] if socket.send_queue_bytes is None else [f"{socket.send_queue_bytes:,} bytes not taken (Send-Q)"]
    parts += [f"sent again {socket.retransmits} times"] if socket.retransmits else []
    parts += [] if socket.sent_ago_seconds is None else [f"last sent {duration(socket.sent_ago_seconds)} ago"]
    return ", ".join(parts)


def ask(end: End) -> tuple[str, ...]:
    """How to look at the other end of a connection on which a thread waits."""
    socket = end.descriptor.socket if end.descriptor is not None else None
    if end.kind != "network" or socket is None:
        return ()
    if socket.state == "LISTEN":  # nothing is yet at the other end; one of a file is called as its program likes
        return (f"ss -{'xlp' if socket.family == 'unix' else 'tlnp'} | grep -F {quote(socket.local)}",)
    return (f"ss -tnp | grep {quote(socket.peer)}",) if socket.peer else ()


def is_store(history: History, job: Job, node: Node, socket: r.Socket) -> bool:
    """True if the other end is a TCPStore: it has that server's thread, or it is the job's MASTER_ADDR:MASTER_PORT."""
    if not socket.family.startswith("tcp"):
        return False
    if any(_store_thread(history, pid) is not None for pid in socket.peer_pids):
        return True
    member = job.members.get(node.rank_pid or node.pid)
    port = member.process.environment.get("MASTER_PORT") if member else None
    return bool(port) and socket.peer.rpartition(":")[2] == port


def open_seconds(history: History, job: Job) -> float | None:
    """For how long the job's store has been there: who still waits for the first meeting has waited since about then.

    The store's server is a thread of one rank, made as that rank enters ``init_process_group``. None without one.
    """
    for member in job.ranks:
        thread, seen = _store_thread(history, member.pid), history.latest(r.Process, member.pid)
        if thread is None or thread.start_ticks is None or seen is None or seen.reading.age_seconds is None:
            continue
        age = seen.reading.age_seconds + history.at - seen.at
        return age - (thread.start_ticks - seen.reading.start_ticks) / TICKS_PER_SECOND
    return None


def _store_thread(history: History, pid: int) -> r.Thread | None:
    return next((one for one in threads_of(history, pid) if one.name.startswith(STORE_THREAD)), None)


def facing(history: History, job: Job, socket: r.Socket, pids: tuple[int, ...]) -> Node | None:
    """The thread of these processes that waits to receive on the other end of a connection: it has nothing to answer."""
    if not (socket.local and socket.peer) and socket.peer_inode is None:
        return None  # of a socket without a name or a number the other end cannot be told
    threads = (one for pid in dict.fromkeys(pids) for one in threads_of(history, pid))
    receive = (one for one in threads if one.wait is not None and one.wait.kind in ("recv", "read"))
    nodes = (node_of(history, job, one.pid, one.tid) for one in receive)
    return next((one for one in nodes if any(_is_far_end(file, socket) for file in waited_on(history, one))), None)


def _is_far_end(file: r.Descriptor, socket: r.Socket) -> bool:
    """True if an open file is the other end of a connection: the same addresses the other way round, or that very inode."""
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
    at_work = [other for other in others if "queue_get" not in other.inner]
    return tuple(worked_for(at_work or others))


def answering(history: History, job: Job, pids: tuple[int, ...]) -> tuple[Node, ...]:
    """The threads that answer in these processes: a main thread that waits for others or for visitors leaves that to other threads."""
    found: list[Node] = []
    for main in [node_of(history, job, pid) for pid in pids]:
        others: tuple[Node, ...] = ()
        if any_tag(main.inner, *LEADING_TAGS):
            others = tuple(worked_for(other_threads(history, job, main)))
        elif main.wait is not None and main.wait.kind == "accept":
            if not python_threads(history, main.pid):
                continue  # without stacks it is not known which of its threads has the visitor
            others = owing(history, job, main)
        found += others or (main,)
    return tuple(found)


def outlived(history: History, job: Job, node: Node) -> bool:
    """True if all children of a process have ended and it reads on: what they have started and left behind holds the pipe (pipe(7))."""
    reads = node.wait is not None and node.wait.kind in ("read", "poll")
    return reads and not any(m.alive for m in job.children(node.pid))


def ended_user(history: History, job: Job, node: Node, socket: r.Socket) -> Node | None:
    """The child that the other end was made for and that has ended, where all that still hold that end merely inherited it."""
    if "mp_receive" not in node.inner:
        return None
    holders = [m for pid in socket.peer_pids if pid != node.pid and (m := job.members.get(pid))]
    pid = _forked_with(history, job, node, socket, holders) if holders and socket.peer_inode is not None else None
    if pid is None and node.pid in socket.peer_pids:
        pid = _last_ended(history, job, node, holders)
    return None if pid is None else node_of(history, job, pid)


def _last_ended(history: History, job: Job, node: Node, holders: list[Member]) -> int | None:
    """The last child that has ended, where every living one that may hold the other end waits for this process itself.

    Where no other process holds it, a thread of its own that runs or may wake has it as likely as the child had.
    """
    idle = all(talks_to(history, node_of(history, job, one.pid), node.pid) for one in holders)
    own = not holders and any(may_act(history, one) for one in other_threads(history, job, node))
    gone = workers.gone(job, node) if idle and not own else ()
    return gone[-1] if gone else None


def _forked_with(history: History, job: Job, node: Node, socket: r.Socket, holders: list[Member]) -> int | None:
    """The child that was forked with those that hold an end and wait for this process on pipes of their own.

    Any other child that has ended may have been anything else.
    """
    nodes = [node_of(history, job, one.pid) for one in holders]
    inherited = all(
        holder.alive
        and holder.process.parent_pid == node.pid
        and "mp_receive" in one.inner
        and talks_to(history, one, node.pid)
        and all(file.inode != socket.peer_inode for file in waited_on(history, one))
        for holder, one in zip(holders, nodes, strict=True)
    )
    ticks = [one.process.start_ticks for one in holders]
    ended = [m for m in job.children(node.pid) if m.process.python and m.ended is not None]
    beside = [m for m in ended if any(abs(m.process.start_ticks - one) <= AT_ONCE_TICKS for one in ticks)]
    return _meant(beside, holders).pid if inherited and beside else None


def _meant(ended: list[Member], holders: list[Member]) -> Member:
    """For which an end was made that these hold: the last one forked before them, which left it open to them, or else the next one.

    Pipes that are made ahead of all forks, and closed in the parent one by one, stay open in those that were forked before.
    """
    first, last = min(map(_started, holders)), max(map(_started, holders))
    older = [m for m in ended if _started(m) < first]
    younger = [m for m in ended if _started(m) > last]
    return max(older, key=_started) if older else min(younger or ended, key=_started)


def _started(member: Member) -> tuple[int, int]:
    """By when it started; of those that did within one tick, by number."""
    return member.process.start_ticks, member.pid


def talks_to(history: History, node: Node, pid: int) -> bool:
    """True if a thread waits at a connection whose other end a process has."""
    return any(file.socket is not None and pid in file.socket.peer_pids for file in waited_on(history, node))


def writers(
    history: History, job: Job, node: Node, pipe: r.Descriptor, name: str, inside: Iterable[int]
) -> Found | None:
    """The threads of its own process that may write into a pipe; None where none may, or other processes hold the write end and move.

    One that moves, or rests until a moment, is the end, as if it might release a lock. Other holders may have inherited the pipe only, so a
    thread that computes is asked before holders that stand. Without either it was the last child that has ended, or else threads
    that stand are followed to what they wait for. Of a FIFO a reader keeps the write end that does not want to hear of its end.
    """
    mine = pipe.kind == "pipe" and node.pid in pipe.writers
    others = worked_for(other_threads(history, job, node)) if mine else []
    moving = [other for other in others if other.motion.frozen is not True or may_act(history, other)]
    gone = workers.gone(job, node)
    if inside:
        stand = all(node_of(history, job, pid).motion.frozen is True for pid in inside)
        moving = [other for other in others if stand and (other.motion.run_share or 0.0) >= COMPUTES]
        others, gone = moving, ()
    if gone and not moving:
        return f"pid {gone[-1]} to write to {name}", (node_of(history, job, gone[-1]),), None
    if not others:
        return None
    first = (moving or others)[0]
    told = f"thread {first.name or first.tid} of its own process to write to {name}"
    end = End("lock", node, others=tuple(one.tid for one in moving))
    return (told, (), end) if moving else (told, tuple(others), None)
