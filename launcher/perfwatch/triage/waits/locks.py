"""What a thread waits for in a futex or an event loop, and which threads hold or bring it, by the functions and lines of both."""

from collections.abc import Iterable

from perfwatch.triage.history import History
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.waits.node import Node, in_event_loop, waits_forever
from perfwatch.triage.words.code import line_of, lock_taken, names
from perfwatch.triage.words.frames import inner_frames, short_name, tags_of, user_frames
from perfwatch_probes import readings as r

A_LOCK = "a lock"
A_CONDITION = "a condition or an event"
A_BARRIER = "the others at a barrier"
ROOM = "room in a queue"
HELD = (A_LOCK, A_BARRIER)  # given back by the thread that took them, or shared with threads yet to come
A_REMOTE_CALL = "a remote call"
AN_OWN_PIPE = "what another thread of its process is to write into a pipe"
NEWS = "something on the files that it watches"
A_TASK = "a task of its event loop to become ready"  # asyncio asks its selector without a timeout when no timer is set
# CPython 3.8 to 3.13: a plain lock is C and has no frame; what has one is written in Python.
ENTERED = {
    "wait": A_CONDITION,
    "wait_for": A_CONDITION,
    "acquire": "a semaphore",
    "join": "a thread to end",
    "_shutdown": "its threads to end",
}
# CPython 3.8 to 3.13: Queue.put and JoinableQueue.put wait for room up to line 331, SimpleQueue.put from 360 on for its turn.
PUTS_BEFORE_LINE = 345
BARRIER_WAIT = "_wait"  # of threading.Barrier, from which multiprocessing's is made; no other class there has one
# What another process may do with it; a lock it may hold.
MAY = {A_CONDITION: "may signal", A_BARRIER: "may share", ROOM: "may make"}
_SIGNALS = ("set", "notify", "notify_all")
# By the method that waits: those of the same object that let it go on (CPython: queue, threading).
LET_GO_ON = {
    "get": ("put", "put_nowait"),
    "put": ("get", "get_nowait"),
    "join": ("task_done",),
    "wait": _SIGNALS,
    "wait_for": _SIGNALS,
    "acquire": ("release",),
}
READS = ("recv", "read", "poll")


def awaited(node: Node) -> str:
    """What a thread asks for in a futex or an event loop, by the function of CPython's library that it entered."""
    if node.stack is None and node.wait is None:
        return "something that could not be looked at"
    if "queue_get" in node.inner:
        return "an item in a queue"
    if "queue_put" in node.inner or _puts_between_processes(node):
        return ROOM
    if "rpc_wait" in node.inner:
        return A_REMOTE_CALL
    if node.wait is not None and node.wait.kind == "read":
        return AN_OWN_PIPE
    if node.wait is not None and node.wait.kind == "poll":
        return A_TASK if in_event_loop(node) else NEWS
    frames = inner_frames(node.stack) if node.stack is not None else ()
    files = ("/threading.py", "/multiprocessing/synchronize.py", "/multiprocess/synchronize.py")
    entered = [short_name(frame.function) for frame in frames if frame.file.endswith(files)]
    if BARRIER_WAIT in entered:
        return A_BARRIER
    return ENTERED.get(entered[-1], A_LOCK) if entered else A_LOCK


def _puts_between_processes(node: Node) -> bool:
    inner = (
        inner_frames(node.stack)[:1] if node.stack is not None and node.wait is not None and node.wait.shared else ()
    )
    return any("mp_queue_put" in tags_of(one.function, one.file) and one.line < PUTS_BEFORE_LINE for one in inner)


def bringers(history: History, node: Node, others: Iterable[Node]) -> list[Node]:
    """Of the threads beside one that waits, those in a function that lets it go on: what that calls bears the name of what it asks.

    ``feed.out.get()`` of one and ``self.out.put(fetch())`` of the other. A thread that asks for the same thing waits as well.
    """
    asked = _asked(history, node)
    wanted = {(name, call) for name, method in asked for call in LET_GO_ON[method]}
    return [one for one in others if wanted & _called(history, one) and not asked & _asked(history, one)]


def _asked(history: History, node: Node) -> set[tuple[str, str]]:
    """The last part of the name of the object that a thread waits at, and the method."""
    line = line_of(history, node.frame)
    return {one for one in _split(line.calls if line is not None else ()) if one[0] and one[1] in LET_GO_ON}


def _called(history: History, node: Node) -> set[tuple[str, str]]:
    lines = (line for _, line in _lines(history, node) if line is not None)
    return {call for line in lines for call in _split((*line.calls, *line.loop_calls, *line.gives))}


def _split(calls: Iterable[str]) -> set[tuple[str, str]]:
    """Each call as the last part of its object's name, and the method."""
    parts = (call.rpartition(".") for call in calls)
    return {(owner.rpartition(".")[2], method) for owner, _, method in parts}


def _lines(history: History, node: Node) -> list[tuple[r.Frame, r.SourceLine | None]]:
    """The program's own frames of a thread, each with its line."""
    return [(frame, line_of(history, frame)) for frame in user_frames(node.stack)] if node.stack is not None else []


def owners(history: History, node: Node, what: str, others: Iterable[Node]) -> list[Node]:
    """Of the threads beside one that waits, those that hold what it waits for, or bring it, by the text; empty if no text tells."""
    if what != A_LOCK:
        return bringers(history, node, others)
    lock = lock_taken(line_of(history, node.frame))
    return [one for one in others if lock and holds(history, one, lock)]


def may_own(history: History, node: Node, others: list[Node]) -> tuple[list[Node], bool]:
    """Of the threads beside one that waits for a lock, those that may own it; True if a reader that is left out may, all the same.

    A thread within a ``with`` of that name does. Else, where another thread stopped at a lock, those
    two explain each other, and a listener that waits for its next message beside them does not; it holds nothing at all where each of
    its lines was read and is in no ``with``.
    """
    lock = lock_taken(line_of(history, node.frame))
    known = owners(history, node, A_LOCK, others)
    rivals = [one for one in others if waits_forever(one) and awaited(one) == A_LOCK]
    if known or not [one for one in rivals if not lock or lock_taken(line_of(history, one.frame)) != lock]:
        return known or others, False  # who waits for the same lock explains nothing
    readers = [other for other in others if other.wait is not None and other.wait.kind in READS and other.state == "S"]
    return [other for other in others if other not in readers], any(not free(history, one) for one in readers)


def holds(history: History, node: Node, lock: str) -> bool:
    """True if a thread is inside of a ``with`` of a lock of that name, beyond the line that takes it."""
    if node.stack is None or (takes_a_lock(history, node.stack) and lock_taken(line_of(history, node.frame)) == lock):
        return False
    return any(line is not None and lock in names(line.within) for _, line in _lines(history, node))


def acquires(history: History, node: Node, lock: str) -> bool:
    """True if a thread is in a loop that takes a lock of that name by ``acquire``, and not at that call: it may have it now."""
    if node.stack is None or takes_a_lock(history, node.stack):
        return False
    return any(line is not None and (lock, "acquire") in _split(line.loop_calls) for _, line in _lines(history, node))


def takes_again(history: History, node: Node) -> r.Frame | None:
    """Where a thread took the lock that it waits for, if it is within a ``with`` of that name in a caller of the same class or file.

    A lock that is no ``RLock`` is not given twice.
    """
    lock = lock_taken(line_of(history, node.frame))
    if not lock or node.stack is None or node.frame is None:
        return None
    if "mp_lock" not in node.inner and not takes_a_lock(history, node.stack):
        return None
    callers = _lines(history, node)[1:]
    within = (frame for frame, line in callers if line is not None and lock in names(line.within))
    return next((frame for frame in within if _class_of(frame) == _class_of(node.frame)), None)


def _class_of(frame: r.Frame) -> tuple[str, str]:
    return frame.file, frame.function.rpartition(".")[0]


def free(history: History, node: Node) -> bool:
    """True if all lines of the program's own on its stack were read, and none of them is in a ``with``."""
    lines = _lines(history, node)
    return bool(lines) and all(line is not None and not line.within for _, line in lines)
