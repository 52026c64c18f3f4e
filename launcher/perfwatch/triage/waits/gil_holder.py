"""Who has the GIL while another thread of the process asks for it again and again."""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import GIL_SWITCHES_PER_SECOND, WINDOW_SECONDS, python_threads
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.node import Node, node_of
from perfwatch_probes import readings as r

GIL_WAIT_SECONDS = 0.02  # CPython re-asks every 5 ms (sys.getswitchinterval); remaining time measured 1-2 ms
OWNER_LOOKS = 3  # the newest ones: on a crowded machine they are many seconds apart
OWNER_SECONDS = 15.0  # only dumps tell the owner of the GIL, and they come every few seconds


def gil_holder(history: History, node: Node) -> int | None:
    """The thread that owns the GIL all the time while this one asks for it again and again; None if it is not so."""
    if not _asks_for_gil(history, node):
        return None
    owners: set[int] = set()
    for tid in python_threads(history, node.pid):
        for seen in history.series(r.Stack, node.pid, tid, seconds=WINDOW_SECONDS):
            if seen.reading.owns_gil:
                owners.add(tid)
    owners.discard(node.tid)
    return owners.pop() if len(owners) == 1 else None


def _asks_for_gil(history: History, node: Node) -> bool:
    wait = node.wait
    if node.state == "R" and node.motion.in_vain:  # met between two such waits
        looks = history.series(r.Thread, node.pid, node.tid, seconds=WINDOW_SECONDS)
        wait = next((one.reading.wait for one in reversed(looks) if one.reading.state != "R"), None)
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
        for seen in history.series(r.Stack, node.pid, node.tid, seconds=OWNER_SECONDS)
        if seen.reading.owns_gil is not None
    ]
    return len(known) >= 2 and not any(known)


def gil_waiters(history: History, job: Job, owner: Node) -> tuple[int, ...]:
    """Threads that ask for the GIL again and again while this one was seen to own it in every look."""
    looks = [
        seen.reading
        for seen in history.series(r.Stack, owner.pid, owner.tid, seconds=OWNER_SECONDS)
        if seen.reading.owns_gil is not None
    ][-OWNER_LOOKS:]
    if len(looks) < 2 or not all(look.owns_gil for look in looks):
        return ()
    others = (node_of(history, job, owner.pid, tid) for tid in python_threads(history, owner.pid) if tid != owner.tid)
    return tuple(other.tid for other in others if _asks_for_gil(history, other))
