"""The other end of a pipe or a connection: which way a thread waits there, and which process or thread uses that end.

A ``multiprocessing.Pipe`` that is made before a fork stays open in every process that is forked later. So the exit of the process that it
was made for closes nothing, and the reader is never told."""

from collections.abc import Iterable
from shlex import quote

from perfwatch.triage import present
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import TICKS_PER_SECOND, Job, Member
from perfwatch.triage.roles.sights import STORE_THREAD
from perfwatch.triage.waits import workers
from perfwatch.triage.waits.node import End, Found, Node, gives, node_of
from perfwatch.triage.waits.threads import LEADING_TAGS, OTHERS_MOVE, may_act, other_threads, parks, worked_for
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Socket

OPENING = ("SYN_SENT", "LISTEN")  # where poll's "writable" means that the connection is there
AT_ONCE_TICKS = 100  # a hundredth of a second each: forks of one loop
COMPUTES = 0.2  # of a core


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
    parts += [] if socket.sent_ago_seconds is None else [f"last sent {socket.sent_ago_seconds:.1f} s ago"]
    return ", ".join(parts)


def ask(end: End) -> tuple[str, ...]:
    """How to look at the other end of a connection on which a thread waits."""
    socket = end.descriptor.socket if end.descriptor is not None else None
    if end.kind != "network" or socket is None:
        return ()
    if socket.state == "LISTEN":  # there is nobody yet at the other end; one of a file is called as its program likes
        return (f"ss -{'xlp' if socket.family == 'unix' else 'tlnp'} | grep -F {quote(socket.local)}",)
    return (f"ss -tnp | grep {quote(socket.peer)}",) if socket.peer else ()


def is_store(history: History, job: Job, node: Node, socket: r.Socket) -> bool:
    """Whether the other end is a TCPStore: it has that server's thread, or it is the job's MASTER_ADDR:MASTER_PORT."""
    if not socket.family.startswith("tcp"):
        return False
    if any(_serves(history, pid) for pid in socket.peer_pids):
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


def _serves(history: History, pid: int) -> bool:
    return _store_thread(history, pid) is not None


def _store_thread(history: History, pid: int) -> r.Thread | None:
    for key in history.of(r.Thread, pid):
        seen = history.latest(r.Thread, *key)
        if seen is not None and seen.reading.name.startswith(STORE_THREAD):
            return seen.reading
    return None


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


def answering(history: History, job: Job, pids: tuple[int, ...]) -> tuple[Node, ...]:
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


def waited_on(history: History, node: Node, wait: r.Wait) -> list[r.Descriptor]:
    """What the wait is on; for an epoll instance, what that watches, connections to others first."""
    fds = [wait.fd] if wait.fd is not None else [p.fd for p in wait.polled]
    found = [seen.reading for fd in fds if (seen := present.open_file(history, node.pid, node.tid, fd))]
    watched = [fd for file in found if file.kind == "epoll" for fd in file.watched]
    return [
        *(file for file in found if file.kind != "epoll"),
        *(seen.reading for fd in watched if (seen := present.open_file(history, node.pid, node.tid, fd))),
    ]


def outlived(history: History, job: Job, node: Node) -> bool:
    """Whether all its children have ended, and it reads on: others hold the pipe, whom those have started and left behind.

    Else the read had met the end of the file (pipe(7)).
    """
    return (
        node.wait is not None
        and node.wait.kind in ("read", "poll")
        and not any(m.alive for m in job.children(node.pid))
    )


def user(history: History, job: Job, node: Node, socket: r.Socket) -> tuple[Node, ...]:
    """Of the processes that hold the other end of a ``multiprocessing.Pipe``, the one that uses it, if that can be told."""
    if "mp_receive" not in node.inner:
        return ()
    inside = [m for m in _holders(job, node, socket) if m.role != "service"]
    nodes = [node_of(history, job, m.pid) for m in inside if m.alive]
    using = [one for one in nodes if _talks_to(history, one, node.pid)]
    return tuple(using or nodes) if len(using or nodes) == 1 else ()


def lost(history: History, job: Job, node: Node, socket: r.Socket) -> tuple[Node, ...]:
    """The child that is no more, where every living one that may hold the other end waits for this process itself.

    Where no other process holds it, a thread of its own that runs or may wake has it as likely as the child had.
    """
    gone = workers.gone(job, node) if "mp_receive" in node.inner else ()
    inside = [node_of(history, job, m.pid) for m in _holders(job, node, socket)]
    if not inside and any(may_act(history, one) for one in other_threads(history, job, node)):
        return ()
    idle = all(_talks_to(history, one, node.pid) for one in inside)
    return (node_of(history, job, gone[-1]),) if gone and idle else ()


def bereft(history: History, job: Job, node: Node, socket: r.Socket) -> tuple[Node, ...]:
    """The child that an end was made for and that is no more, where all who still hold it merely inherited it.

    Each of them waits for this process on a pipe of its own. It was forked with them, or before them and was killed or failed: any
    other child that has ended may have been anything else.
    """
    if "mp_receive" not in node.inner or socket.peer_inode is None:
        return ()
    holders = _holders(job, node, socket)
    if not holders or not all(_idle_elsewhere(history, job, node, one, socket.peer_inode) for one in holders):
        return ()
    ended = [m for m in job.children(node.pid) if m.process.python and m.ended is not None]
    first = min(map(_started, holders))
    beside = [m for m in ended if _forked_with(m, holders)]
    failed = [m for m in beside if _failed(m)] or [m for m in ended if _failed(m) and _started(m) < first]
    found = failed or beside
    return (node_of(history, job, _meant(found, holders).pid),) if found else ()


def _meant(ended: list[Member], holders: list[Member]) -> Member:
    """For whom an end was made that these hold: the last one forked before them, who left it open to them, or else the next one.

    Pipes that are made ahead of all forks, and closed in the parent one by one, stay open in those that were forked before.
    """
    older = [m for m in ended if _started(m) < min(map(_started, holders))]
    younger = [m for m in ended if _started(m) > max(map(_started, holders))]
    return max(older, key=_started) if older else min(younger or ended, key=_started)


def _holders(job: Job, node: Node, socket: r.Socket) -> list[Member]:
    """Processes of the job but this one that hold the other end."""
    return [m for pid in socket.peer_pids if pid != node.pid and (m := job.members.get(pid))]


def _started(member: Member) -> tuple[int, int]:
    """By when it started; of those that did within one tick, by number."""
    return member.process.start_ticks, member.pid


def _failed(member: Member) -> bool:
    return member.ended is not None and member.ended.exit_code != 0


def _forked_with(member: Member, holders: list[Member]) -> bool:
    """Whether a child was forked in one go with one of these."""
    ticks = member.process.start_ticks
    return any(abs(ticks - one.process.start_ticks) <= AT_ONCE_TICKS for one in holders)


def _idle_elsewhere(history: History, job: Job, node: Node, holder: Member, inode: int) -> bool:
    """Whether a sibling waits for the next thing that this process sends it, and not on the end in question."""
    if not holder.alive or holder.process.parent_pid != node.pid:
        return False
    one = node_of(history, job, holder.pid)
    if one.wait is None or "mp_receive" not in one.inner:
        return False
    files = waited_on(history, one, one.wait)
    return _talks_to(history, one, node.pid) and all(file.inode != inode for file in files)


def _talks_to(history: History, node: Node, pid: int) -> bool:
    files = waited_on(history, node, node.wait) if node.wait is not None else ()
    return any(file.socket is not None and pid in file.socket.peer_pids for file in files)


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
