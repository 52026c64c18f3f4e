"""Who is at the other end of a socket that forked processes have inherited: of its holders, the one that uses it, or nobody any more.

A ``multiprocessing.Pipe`` that is made before a fork stays open in every process that is forked later, so that the end of the
one that it was made for closes nothing, and who waits for its answer is never told.
"""

from perfwatch.triage import present
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job, Member
from perfwatch.triage.waits import workers
from perfwatch.triage.waits.heartbeats import may_act
from perfwatch.triage.waits.node import Node, node_of
from perfwatch.triage.waits.threads import other_threads
from perfwatch_probes import readings as r

AT_ONCE_TICKS = 100  # a hundredth of a second each: forks of one loop


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
