"""Edges to other processes: DataLoader workers, pools, subprocesses, joined processes.

Each function returns what is waited for in words, the threads to follow, and the end where there is none to follow.
"""

from collections.abc import Iterable

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import Job, Member
from perfwatch.triage.waits.node import End, Found, Node, beside, idle, in_task, led_to, node_of
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, is_user, show, tags_of
from perfwatch_probes import readings as r

FORKS = ("vfork", "clone", "clone3")  # their caller waits, in state D, until the child has become a program of its own
BEGUN_SECONDS = 1.0  # from when a caller last ran to its child's start, which is told in ticks and after a look
EXECUTOR_TAGS = ("pool_service", "futures_service")
# Calls by which a loop takes an order, or gives somebody what it waits for.
HANDS_OVER = frozenset(
    "set_result set_exception put put_nowait get get_nowait send send_bytes sendall recv recv_bytes append appendleft pop popleft "
    "notify notify_all set clear release acquire submit result write flush".split()
)


def loader(history: History, job: Job, node: Node) -> Found:
    """The main thread waits for a batch: which worker has not delivered?

    Workers of an earlier epoch that are gone matter only where none lives. One that was spawned a moment ago and still
    imports torch is not known as a worker yet.
    """
    members = [m for m in job.children(node.pid) if m.role == "worker"]
    young = [m for m in job.children(node.pid) if m.alive and m.role == "child" and m.process.python]
    members = [m for m in members if m.alive] or young or members
    return _among(history, job, node, members, "DataLoader worker")


def pool_members(job: Job, node: Node) -> list[Member]:
    """Processes that may work for a pool of this process."""
    return [m for m in job.children(node.pid) if m.role in ("pool_worker", "child") and m.process.python]


def pool(history: History, job: Job, node: Node) -> Found | None:
    """The thread waits for a result of a pool of threads or processes; None where no pool is to be seen."""
    inside = beside(history, job, node)
    threads = [n for n in inside if any_tag(n.tags, "futures_worker", "pool_worker") and not idle(n)]
    threads = [n for n in threads if not _serves_nobody(history, n)] or threads
    kinds = EXECUTOR_TAGS if "pool_wait" in node.inner else EXECUTOR_TAGS[1:]  # a future is none of multiprocessing's
    service = [n for n in inside if any_tag(n.tags, *kinds)]
    chosen = threads or [n for n in service if n.frame is not None and is_user(n.frame)]
    if chosen:
        return led_to(chosen, " of its pool")
    members = pool_members(job, node)
    if service and not members and not any(one.alive and one.role == "pool_worker" for one in job.members.values()):
        return _among(history, job, node, [], "pool worker")  # not all executors start others where theirs have retired
    if not members or not (service or "pool_wait" in node.inner):
        return None
    alive = [m for m in members if m.alive]  # a pool replaces those that end, as they should or not
    if not alive:
        return "a pool worker (none is seen)", (), End("idle", node)
    return _among(history, job, node, alive, "pool worker")


def calling_back(history: History, job: Job, node: Node) -> Found | None:
    """The workers of a pool of processes that are at a task: its library's thread calls back with what they return.

    For a thread that waits for what such a callback may bring. None where no worker is at one.
    """
    if not any(any_tag(one.tags, *EXECUTOR_TAGS) for one in beside(history, job, node)):
        return None
    known = [m for m in pool_members(job, node) if m.alive]
    busy = [m for m in known if (one := node_of(history, job, m.pid)).stack is not None and not idle(one)]
    return _among(history, job, node, busy, "pool worker") if busy else None


def _serves_nobody(history: History, node: Node) -> bool:
    """True if a thread of a pool rests in an endless loop of its task that only looks at something now and then: it gives no result.

    One that takes orders, or hands something over, may give it: a batcher completes the futures of others. So may one that is met at
    work, whatever its loop is seen to call.
    """
    within = in_task(node.stack) if node.stack is not None else []
    task = next((one for one in reversed(within) if is_user(one)), None)
    line = line_of(history, task)
    if line is None or task != within[0] or not line.endless or line.calls_unnamed:
        return False
    return "sleep" in names(line.calls) and names(line.loop_calls).isdisjoint(HANDS_OVER)


def _among(history: History, job: Job, node: Node, members: list[Member], what: str) -> Found:
    dead = [m for m in members if not m.alive]
    alive = [node_of(history, job, m.pid) for m in members if m.alive]
    if dead and all(idle(worker) for worker in alive):
        return f"{what} {dead[0].pid}, which is gone", (), End("dead", node_of(history, job, dead[0].pid))
    busy = [worker for worker in alive if not idle(worker)]
    if busy:
        return f"{what}{'s' if len(busy) > 1 else ''} {_list(busy)}", tuple(busy), None
    feeder = _feeder(history, job, [node.pid, *(w.pid for w in alive)])
    if feeder is not None:
        return f"{feeder.name or 'the queue feeder'} of pid {feeder.pid}", (), End("feeder", feeder)
    if not alive:
        return f"a {what} (none is left)", (), End("dead", node, detail="none is left")
    return (
        f"{what}{'s' if len(alive) > 1 else ''} {_list(alive)}, all idle",
        (),
        End("idle", node, others=tuple(w.pid for w in alive)),
    )


def _list(nodes: list[Node]) -> str:
    shown = ", ".join(str(n.pid) for n in nodes[:4])
    return shown + (" ..." if len(nodes) > 4 else "")


def at_pipe(history: History, job: Job, node: Node, holders: Iterable[int], writing: bool) -> tuple[int, ...]:
    """Of the processes that hold the other end of a thread's pipe, those of the job that may use it.

    What loads data for a holder was forked with its descriptors, and leaves reading to it; the write end it keeps open. Of several
    who may write, one that waits for room in a queue has written to another pipe, which is full; nothing is in this one. One that waits
    at its end until its own queues are taken reads none any more.
    """
    inside = [m for pid in holders if pid != node.pid and (m := job.members.get(pid)) and m.role != "service"]
    pids = {member.pid for member in inside if writing}
    forked = {m.pid for m in inside if m.role in ("worker", "pool_worker") and m.process.parent_pid in pids}
    using = tuple(member.pid for member in inside if member.pid not in forked)
    done = "feeder_join" if writing else "mp_queue_put"
    return tuple(pid for pid in using if done not in node_of(history, job, pid).inner) or using


def _feeder(history: History, job: Job, pids: list[int]) -> Node | None:
    """A queue's feeder or pin-memory thread that is at something else than waiting for work."""
    nodes = (node_of(history, job, pid, tid) for pid in pids for tid in python_threads(history, pid))
    feeders = (one for one in nodes if any_tag(one.tags, "feeder", "pin_memory"))
    return next((one for one in feeders if not _waits_for_work(one)), None)


def _waits_for_work(node: Node) -> bool:
    """A feeder without anything to send, or a pin-memory thread that waits for the workers like the main thread."""
    frames = node.stack.frames if node.stack else ()
    if any(is_user(frame) for frame in frames):
        return False
    if "feeder" in node.tags:
        return bool(frames) and any_tag(tags_of(frames[0].function, frames[0].file), "thread_wait", "feeder")
    return "mp_queue_get" in node.tags


def gone(job: Job, node: Node) -> tuple[int, ...]:
    """Python children of a process that have ended."""
    return tuple(m.pid for m in job.children(node.pid) if not m.alive and m.process.python)


def behind_manager(history: History, job: Job, node: Node, peers: tuple[int, ...]) -> tuple[Node, ...]:
    """Where a ``multiprocessing.Manager`` is the peer: the other processes of the job, for they fill its queues."""
    if not any(_is_manager(history, job, pid) for pid in peers):
        return ()
    others = [m for m in job.members.values() if m.process.python and m.role in ("child", "worker", "pool_worker")]
    found = [m.pid for m in others if m.pid not in (node.pid, *peers) and not _is_manager(history, job, m.pid)]
    return tuple(node_of(history, job, pid) for pid in found)


def _is_manager(history: History, job: Job, pid: int) -> bool:
    return any("manager" in node_of(history, job, pid, tid).tags for tid in python_threads(history, pid))


def child(history: History, job: Job, node: Node) -> Found:
    """The thread waits for a subprocess: judge the child."""
    wanted = node.wait.child_pid if node.wait and node.wait.child_pid and node.wait.child_pid > 0 else None
    return _one_of(history, job, node, wanted)


def is_pidfd(file: r.Descriptor) -> bool:
    """True if an open file stands for a process, and is readable once that has ended: asyncio awaits a child so (CPython 3.12)."""
    return file.target == "anon_inode:[pidfd]"


def ends(history: History, job: Job, node: Node, file: r.Descriptor) -> Found | None:
    """The thread waits for the end of the child that an open file stands for; None where the file stands for none of its process."""
    if not is_pidfd(file):
        return None
    wanted = file.watched_pid if file.watched_pid is not None and file.watched_pid > 0 else None
    if wanted is not None and all(m.pid != wanted for m in job.children(node.pid)):
        return None
    return _one_of(history, job, node, wanted)


def at_work_first(history: History, job: Job, files: Iterable[r.Descriptor]) -> list[r.Descriptor]:
    """Of what one thread waits on: first the ends of children that move, then all else, and the ends of those that stand last.

    An event loop waits on everything at once, and a server of its own that is never to end is one of them.
    """
    pids = {file.fd: file.watched_pid for file in files if is_pidfd(file)}
    stand = {fd for fd, pid in pids.items() if pid is not None and node_of(history, job, pid).motion.frozen is True}
    return sorted(files, key=lambda file: (file.fd in stand) - (file.fd in pids and file.fd not in stand))


def _one_of(history: History, job: Job, node: Node, wanted: int | None) -> Found:
    members = [m for m in job.children(node.pid) if m.role != "service" and (wanted is None or m.pid == wanted)]
    if wanted is None and any(m.alive and m.role != "worker" for m in members):
        members = [m for m in members if m.alive and m.role != "worker"]
    return _others(history, job, node, members, "child")


def begun(history: History, job: Job, node: Node) -> Found | None:
    """The thread waits for a child that it has just made to become another program: of those that live, the one as old as the wait."""
    if node.thread is None or node.thread.ran_ago_seconds is None:
        return None
    since = node.thread_at - node.thread.ran_ago_seconds
    looks = (history.latest(r.Process, m.pid) for m in job.children(node.pid) if m.alive)
    ages = [
        (s.at - s.reading.age_seconds - since, s.reading.pid) for s in looks if s and s.reading.age_seconds is not None
    ]
    first = min((one for one in ages if one[0] > -BEGUN_SECONDS), default=None)
    return None if first is None else _others(history, job, node, [job.members[first[1]]], "child")


def joined(history: History, job: Job, node: Node) -> Found:
    """The thread joins one or more processes."""
    members = [m for m in job.children(node.pid) if m.role != "service"]
    return _others(history, job, node, members, "process")


def _others(history: History, job: Job, node: Node, members: list[Member], what: str) -> Found:
    alive = [m for m in members if m.alive]
    if not alive:
        if members:
            last = max(members, key=lambda m: m.process.start_ticks)
            return f"{what} {last.pid}, which is gone", (), End("dead", node_of(history, job, last.pid))
        return f"a {what} that could not be found", (), End("unknown", node)
    targets = tuple(node_of(history, job, m.pid) for m in alive)
    names = ", ".join(f"{m.pid} ({m.process.name})" for m in alive[:4])
    where = show(targets[0].frame)
    return f"{what} {names}" + (f" at {where}" if where else ""), targets, None
