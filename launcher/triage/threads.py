"""Edges inside one process: locks, conditions, joins, and the GIL."""

from perfwatch.probes import readings as r
from perfwatch.triage.frames import any_tag, tags
from perfwatch.triage.history import History
from perfwatch.triage.job import Job
from perfwatch.triage.motion import WINDOW_SECONDS, dominant, python_threads
from perfwatch.triage.node import End, Node, node_of

GIL_WAIT_SECONDS = 0.02  # CPython re-asks every 5 ms (sys.getswitchinterval); remaining time measured 1-2 ms
GIL_SWITCHES_PER_SECOND = (60.0, 400.0)  # measured 193/s at the default switch interval
SERVICE_TAGS = ("feeder", "pool_service", "futures_service", "monitor", "pin_memory", "serve")


def gil_holder(history: History, node: Node) -> int | None:
    """The thread that owns the GIL all the time while this one asks for it again and again; None if it is not so."""
    if not _asks_for_gil(node):
        return None
    owners: set[int] = set()
    for tid in python_threads(history, node.pid):
        for seen in history.series(r.Stack, node.pid, tid, seconds=WINDOW_SECONDS):
            if seen.reading.owns_gil:
                owners.add(tid)
    owners.discard(node.tid)
    return owners.pop() if len(owners) == 1 else None


def _asks_for_gil(node: Node) -> bool:
    wait = node.wait
    if wait is None or wait.kind != "futex" or wait.forever:
        return False
    low, high = GIL_SWITCHES_PER_SECOND
    switches = node.motion.switches_per_second
    if switches is not None:
        return low <= switches <= high
    return wait.remaining_seconds is not None and wait.remaining_seconds <= GIL_WAIT_SECONDS


def without_gil(history: History, node: Node) -> bool:
    """Whether a running thread was never seen to own the GIL: it is in native code that released it."""
    known = [
        seen.reading.owns_gil
        for seen in history.series(r.Stack, node.pid, node.tid, seconds=WINDOW_SECONDS)
        if seen.reading.owns_gil is not None
    ]
    return len(known) >= 2 and not any(known)


def waits(history: History, job: Job, node: Node) -> tuple[str, tuple[Node, ...], End | None]:
    """A thread in a futex: which other thread of the process could let it go on?"""
    others = [node_of(history, job, node.pid, tid) for tid in python_threads(history, node.pid) if tid != node.tid]
    others = [other for other in others if not _is_service(history, other)]
    if (
        not any_tag(node.tags, "thread_join", "thread_wait", "queue_get", "queue_put", "futures_wait")
        and node.motion.frozen is False
    ):
        return "something that lets it move now and then", (), End("other", node)
    locked = [other for other in others if waits_forever(other)]
    free = [other for other in others if not waits_forever(other)]
    if any_tag(node.tags, "thread_join", "futures_wait") and free:
        pending = [other for other in free if not _ticks(other)] or free
        return f"thread {pending[0].name or pending[0].tid}", tuple(pending), None
    pending = [other for other in free if other.motion.frozen]
    if pending:
        return f"thread {pending[0].name or pending[0].tid}", tuple(pending), None
    if not free or locked or (node.wait is not None and node.wait.forever):
        names = tuple(other.tid for other in locked)
        who = (
            f"held by a thread that waits itself ({', '.join(map(str, names))})"
            if names
            else "that no thread will release"
        )
        return f"a lock {who}", (), End("lock", node, others=names)
    return (
        "another thread",
        (),
        End("lock", node, others=tuple(other.tid for other in free), detail="other threads move"),
    )


def waits_forever(node: Node) -> bool:
    """Blocked in a futex without a timeout."""
    return node.wait is not None and node.wait.kind == "futex" and node.wait.forever


def _ticks(node: Node) -> bool:
    """A heartbeat: it sleeps for a moment, again and again."""
    return node.wait is not None and node.wait.kind == "sleep" and node.motion.frozen is False


def _is_service(history: History, node: Node) -> bool:
    stack = dominant(history, node.pid, node.tid)
    return stack is not None and any_tag(tags(stack.reading), *SERVICE_TAGS)


def gil_waiters(history: History, job: Job, owner: Node) -> tuple[int, ...]:
    """Threads that ask for the GIL again and again while this one was seen to own it in every look."""
    looks = [
        seen.reading
        for seen in history.series(r.Stack, owner.pid, owner.tid, seconds=WINDOW_SECONDS)
        if seen.reading.owns_gil is not None
    ]
    if len(looks) < 2 or not all(look.owns_gil for look in looks):
        return ()
    others = (node_of(history, job, owner.pid, tid) for tid in python_threads(history, owner.pid) if tid != owner.tid)
    return tuple(other.tid for other in others if _asks_for_gil(other))
