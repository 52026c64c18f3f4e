"""What a thread asks for that waits in a futex or an event loop, in words, by the function of the library that it entered."""

from perfwatch.triage.waits.node import Node, in_event_loop
from perfwatch.triage.words.frames import inner_frames, short_name, tags_of

A_LOCK = "a lock"
A_CONDITION = "a condition or an event"
A_BARRIER = "the others at a barrier"
ROOM = "room in a queue"
HELD = (A_LOCK, A_BARRIER)  # given back by whoever took them, or shared with those who are yet to come
A_REMOTE_CALL = "a remote call"
AN_OWN_PIPE = "what another thread of its process is to write into a pipe"
NEWS = "something on the files that it watches"
A_TASK = "a task of its event loop that could run"  # asyncio asks its selector without a timeout when no timer is set
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
    frames = inner_frames(node.stack) if node.stack is not None else ()
    shared = node.wait is not None and node.wait.shared
    return shared and any(
        "mp_queue_put" in tags_of(one.function, one.file) and one.line < PUTS_BEFORE_LINE for one in frames[:1]
    )
