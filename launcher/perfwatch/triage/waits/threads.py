"""Waits inside one process: native code, locks, conditions, joins and the GIL, and which of its other threads may end them.

A reader of object stores, an RPC library or a simulator's queue waits in a futex or on a descriptor of its own for threads that
Python does not know, and those for a process far away. That such a wait lasts says little before the patience is over.
"""

from collections.abc import Iterable

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import (
    GIL_SWITCHES_PER_SECOND,
    WINDOW_SECONDS,
    asks_for_gil,
    dominant,
    python_threads,
)
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.roles.job import GROUP_THREADS, Job
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.waits.node import (
    ENDLESS_SECONDS,
    NATIVE_WAIT,
    End,
    Found,
    Node,
    beside,
    has_timeout,
    idle,
    in_event_loop,
    led_to,
    node_of,
    silence,
    threads_of,
    waits_forever,
)
from perfwatch.triage.words.code import TELLS, line_of, lock_taken, names
from perfwatch.triage.words.frames import (
    any_tag,
    inner_frames,
    is_standard,
    is_user,
    package_of,
    short_name,
    tags_of,
    user_frames,
)
from perfwatch_probes import readings as r

# Native code: what looks like a lock of Python's that no thread releases

STARTED = "_bootstrap"  # the outermost function of a thread that Python's threading has started
WAITS = ("futex", "poll", "other")  # any other call says itself what it waits for
OF_PYTHON = frozenset({"acquire", "wait", "get", "put", "join"})  # methods of Python's own locks, events and queues
# How torch names the threads that carry remote calls; those for shared memory spin while they wait (measured: at a whole core).
OF_TENSORPIPE = "TP_"
OF_GLOO = "pt_gloo_runloop"  # each carries out one collective after the other
# The thread that moves gloo's bytes bears the program's name, and waits for them so long at a time (gloo, transport/tcp/loop.cc).
LOOP_SECONDS, LOOP_WATCHED_SECONDS = 0.01, 30.0


def in_native_code(history: History, node: Node) -> bool:
    """True if a thread waits in a call of native code that is no lock, queue or event of Python's.

    Of a line whose text was not read the program's own is taken for one that asks for a lock, if it is shared between processes, or if
    no native thread is there that might do something for it.
    """
    if node.wait is None or node.wait.kind not in WAITS:
        return False
    if node.stack is None or not node.stack.frames:
        return False
    inner = node.stack.frames[0]
    if is_standard(inner):
        return False
    line = line_of(history, inner)
    if line is None:
        return not is_user(inner) or not (node.wait.shared or all_parked(history, node.pid))
    return not line.text.strip().startswith(("with ", "async with ")) and not names(line.calls) & OF_PYTHON


def all_parked(history: History, pid: int) -> bool:
    """True if every thread of a process without a Python frame is blocked in a futex without a timeout, or waits for visitors."""
    return all(_parked(one) or (one.wait is not None and one.wait.kind == "accept") for one in _native(history, pid))


def nobody_left(history: History, node: Node) -> bool:
    """True if no thread of its process can wake one that waits in a futex of that process alone: all wait so, without a timeout."""
    alive = _alive(history, node.pid)
    used = history.latest(r.ProcessUsage, node.pid)
    return used is not None and used.reading.threads <= len(alive) and all(map(_parked, alive))


def may_serve(node: Node, other: Node) -> bool:
    """True if native code may wait for a thread of Python's: of a library's, one that it called itself or that is in it too."""
    if other.stack is None or node.stack is None or short_name(other.stack.frames[-1].function) != STARTED:
        return True
    own = {package_of(frame) for frame in inner_frames(node.stack)} - {None}
    return not own or any(package_of(frame) in own for frame in other.stack.frames)


def carries(history: History, pid: int, tid: int) -> bool:
    """True if a thread of torch's carries messages between ranks: it may spin while all wait for one, and holds no lock of Python's."""
    seen = history.latest(r.Thread, pid, tid)
    return seen is not None and seen.reading.name.startswith((*GROUP_THREADS, OF_TENSORPIPE))


def reduces(history: History, pid: int) -> bool:
    """True if a collective of gloo's is under way in a process: its callback may let any thread of that process go on.

    A thread of the group waits for its next collective without a timeout, and within one for its peers with the group's timeout
    (torch, ProcessGroupGloo.cpp, ``runLoop``; measured with 2.13). A future of NCCL's is complete as soon as its kernel is
    launched: its callbacks wait for no thread.
    """
    return any(one.name.startswith(OF_GLOO) and not _parked(one) for one in _alive(history, pid))


def of_gloo(history: History, pid: int, tid: int) -> bool:
    """True if a native thread moves the bytes of gloo's collectives, and provides nothing else.

    A thread that waits for longer at a time belongs to something else, however little of that is left in one sample.
    """
    looks = [one.reading.wait for one in history.series(r.Thread, pid, tid, seconds=LOOP_WATCHED_SECONDS)]
    waits = [wait for wait in looks if wait is not None]
    brief = (
        wait.call.startswith("epoll") and not wait.forever and (wait.remaining_seconds or 0.0) <= LOOP_SECONDS
        for wait in waits
    )
    return bool(waits) and all(brief) and any(one.name.startswith(OF_GLOO) for one in threads_of(history, pid))


def native_sockets(history: History, pid: int, seconds: float) -> frozenset[int]:
    """The descriptors on which threads without a Python frame waited lately."""
    return frozenset().union(*(waited_on(history, pid, one.tid, seconds) for one in _native(history, pid)))


def in_kernel(history: History, pid: int) -> bool:
    """True if a thread without a Python frame is in state D: it reads through a mapping, and no counter shows it."""
    return any(one.state == "D" for one in _native(history, pid))


def called_from(end: End) -> str:
    """``native code of pyarrow``, as far as the stack tells."""
    inner = end.node.stack.frames[0] if end.node.stack is not None and end.node.stack.frames else None
    package = package_of(inner) if inner is not None else None
    return f"native code of {package}" if package else "native code"


def _parked(thread: r.Thread) -> bool:
    return thread.wait is not None and thread.wait.kind == "futex" and thread.wait.forever


def _native(history: History, pid: int) -> list[r.Thread]:
    """The threads of a process that have no Python frame."""
    return [one for one in _alive(history, pid) if dominant(history, pid, one.tid) is None]


def _alive(history: History, pid: int) -> list[r.Thread]:
    return [one for one in threads_of(history, pid) if one.state not in ("X", "Z")]


# What a thread waits for in a futex or an event loop, and which threads hold or bring it, by the functions and lines of both

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
# Of ``threading``: the frames in which a thread starts, below all that it calls (CPython 3.8 to 3.13).
STARTS = ("run", "_bootstrap_inner", "_bootstrap")
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
    called = (short_name(frame.function) for frame in frames if frame.file.endswith(files))
    entered = [name for name in called if name not in STARTS]
    if BARRIER_WAIT in entered:
        return A_BARRIER
    return ENTERED.get(entered[-1], A_LOCK) if entered else A_LOCK


def _puts_between_processes(node: Node) -> bool:
    inner = (
        inner_frames(node.stack)[:1] if node.stack is not None and node.wait is not None and node.wait.shared else ()
    )
    return any("mp_queue_put" in tags_of(one.function, one.file) and one.line < PUTS_BEFORE_LINE for one in inner)


def bringers(history: History, node: Node, others: Iterable[Node]) -> list[Node]:
    """Of the threads beside one that waits, those in a function that releases it: one that calls a method of the object that it waits for.

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


def may_own(history: History, node: Node, others: list[Node]) -> list[Node]:
    """Of the threads beside one that waits for a lock, those that may own it.

    A thread within a ``with`` of that name does. Else, where another thread stopped at a lock, those
    two explain each other, and a listener that waits for its next message beside them does not.
    """
    known = owners(history, node, A_LOCK, others)
    if known or not _rivals(history, node, others):
        return known or others
    return [one for one in others if not _reads(one)]


def listeners(history: History, node: Node, others: list[Node]) -> tuple[tuple[int, int], ...]:
    """Of these, the listeners that surely hold nothing: each of their lines was read and is in no ``with``."""
    readers = [one for one in others if _reads(one)] if _rivals(history, node, others) else []
    return tuple((one.pid, one.tid) for one in readers if free(history, one))


def _rivals(history: History, node: Node, others: list[Node]) -> list[Node]:
    """The threads that stopped at another lock; who waits for the same one explains nothing."""
    lock = lock_taken(line_of(history, node.frame))
    stopped = [one for one in others if waits_forever(one) and awaited(one) == A_LOCK]
    return [one for one in stopped if not lock or lock_taken(line_of(history, one.frame)) != lock]


def _reads(node: Node) -> bool:
    return node.wait is not None and node.wait.kind in READS and node.state == "S"


def holds(history: History, node: Node, lock: str) -> bool:
    """True if a thread is inside of a ``with`` of a lock of that name, beyond the line that takes it."""
    if node.stack is None or (takes_a_lock(history, node.stack) and lock_taken(line_of(history, node.frame)) == lock):
        return False
    return any(line is not None and lock in names(line.within) for _, line in _lines(history, node))


def path_under_lock(history: History, waiting: r.Stack, holding: r.Stack) -> tuple[r.Frame, ...]:
    """Of a thread that holds the lock for which another waits: the frames from the one that took it on, outermost first; empty if unknown.

    It is past the line at which the other one asks, in the same function; or inside of a ``with`` of a lock of that name.
    """
    asks = inner_frames(waiting)
    own = waiting.frames[len(asks) : len(asks) + 1]
    lock = lock_taken(line_of(history, own[0] if own else None))
    frames = holding.frames[::-1]
    for index, frame in enumerate(frames):
        past = any(
            (one.function, one.file) == (frame.function, frame.file) and one.line < frame.line for one in (*asks, *own)
        )
        line = line_of(history, frame)
        if past or (lock and line is not None and lock in names(line.within)):
            return frames[index:]
    return ()


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


# Which other thread lets one go on

HEARTBEATS_PER_SECOND = 0.5  # a heartbeat wakes at least so often: twice within one look of a few seconds
LONGEST_BEAT_SECONDS = 2.0 / HEARTBEATS_PER_SECOND
JUST_NOW_SECONDS = 2.0
# All that a heartbeat calls; a loop that calls anything else may hand something over.
HEARTBEAT_CALLS = TELLS | frozenset("sleep wait is_set write flush open close time monotonic perf_counter len".split())
HAS_THREADS = "monitor"  # tag of libraries whose threads are servants of the program's
ASKS = frozenset({"thread_wait", "thread_join", "futures_wait", "queue_get"})
OWNER_LOOKS = 3  # the newest ones: on a crowded machine they are many seconds apart
OWNER_SECONDS = 15.0  # only dumps tell the owner of the GIL, and they come every few seconds
HELD_BY = ", held by thread "
CALLBACK = "callback"  # of a collective: how far that has come is up to the other ranks
OTHERS_MOVE = "other processes that may hold it move"
OUTSIDE_HELD = "a process outside of the job may hold it"  # it is shared, and nobody of the job has it besides
BEFORE_SECONDS = 30.0  # a thread that fell silent so much earlier than the one that waits was idle anyway
LEADING_TAGS = (
    "loader_wait pool_wait futures_wait thread_join mp_join spawn_join child_wait collective rendezvous file_lock prompt"
    " rpc_wait"
).split()
SERVICE_TAGS = ("feeder", "pool_service", "futures_service", "monitor", "pin_memory", "serve")


def ticks(node: Node) -> bool:
    """A heartbeat: it rests for a moment, again and again, and was seen to come and go."""
    wait = node.wait
    if wait is None or wait.kind not in ("sleep", "poll", "futex") or wait.forever:
        return False
    if (wait.remaining_seconds or 0.0) > LONGEST_BEAT_SECONDS:
        return False  # it has just come and gone, and rests for long now: before another try, say
    return (node.motion.switches_per_second or 0.0) >= HEARTBEATS_PER_SECOND


def may_act(history: History, node: Node) -> bool:
    """True if a thread runs, did so a moment ago in the midst of its work, or may do something for others when it wakes by itself.

    A heartbeat does not. A loop of an event loop, or one that calls anything else, may hand something over now and then.
    """
    if waits_forever(node):
        ran = node.motion.ran_ago_seconds
        return ran is not None and ran < JUST_NOW_SECONDS and "queue_get" not in node.inner
    source = line_of(history, node.frame)
    return not ticks(node) or in_event_loop(node) or source is None or not names(source.loop_calls) <= HEARTBEAT_CALLS


def asked_by_library(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    """The threads of a library, for one that waits inside of that library (``wandb.finish()``): what they do, it waits for."""
    if node.stack is None or node.inner.isdisjoint(ASKS):
        return ()
    inner = inner_frames(node.stack)
    libraries = {package_of(frame) for frame in inner if HAS_THREADS in tags_of(frame.function, frame.file)} - {None}
    return tuple(
        other
        for other in beside(history, job, node)
        if other.stack is not None and any(package_of(frame) in libraries for frame in other.stack.frames)
    )


def queue_feeders(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    """The threads that write what was put into queues between processes, which a process joins before it ends."""
    writing = (one for one in beside(history, job, node) if one.wait is not None and one.wait.kind == "write")
    return tuple(one for one in writing if "feeder" in one.tags)


def gil_holder(history: History, node: Node) -> int | None:
    """The thread that owns the GIL all the time while this one asks for it again and again; None if it is not so."""
    if not _asks_for_gil(history, node):
        return None
    dumps = {
        tid: history.series(r.Stack, node.pid, tid, seconds=WINDOW_SECONDS) for tid in python_threads(history, node.pid)
    }
    owners = [tid for tid, looks in dumps.items() if tid != node.tid and any(one.reading.owns_gil for one in looks)]
    return owners[0] if len(owners) == 1 else None


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
    return asks_for_gil(wait)


def _owned_gil(history: History, node: Node) -> list[bool]:
    """In each dump that tells the owner of the GIL: did a thread own it?"""
    looks = (one.reading.owns_gil for one in history.series(r.Stack, node.pid, node.tid, seconds=OWNER_SECONDS))
    return [one for one in looks if one is not None]


def without_gil(history: History, node: Node) -> bool:
    """True if a running thread was never seen to own the GIL: it is in native code that released it."""
    known = _owned_gil(history, node)
    return len(known) >= 2 and not any(known)


def gil_waiters(history: History, job: Job, owner: Node) -> tuple[int, ...]:
    """Threads that ask for the GIL again and again while this one was seen to own it in every look."""
    known = _owned_gil(history, owner)[-OWNER_LOOKS:]
    if len(known) < 2 or not all(known):
        return ()
    return tuple(other.tid for other in beside(history, job, owner) if _asks_for_gil(history, other))


def waits(history: History, job: Job, node: Node) -> Found:
    """A thread in a futex (or asleep in a selector): which other thread could let it go on?"""
    if "feeder_join" in node.inner and (feeders := queue_feeders(history, job, node)):
        return led_to(feeders, " to hand over what was put into a queue")
    native, what = in_native_code(history, node), awaited(node)
    if not native and (asked := asked_by_library(history, job, node)):
        return led_to(asked)
    others = other_threads(history, job, node)
    polls = node.wait is not None and node.wait.kind == "poll" and not native
    if polls and "asyncio" in node.inner and node.wait is not None and not node.wait.forever:
        # with a timer it goes on by itself, and not by who waits for a future of its
        others = [other for other in others if "futures_wait" not in other.inner]
    if (polls or any_tag(node.inner, "thread_join", "futures_wait")) and (joined := worked_for(others)):
        return led_to(joined)
    if not native and what != A_LOCK and (known := owners(history, node, what, others)):
        return f"{what}, from thread {known[0].name or known[0].tid}", tuple(known), None
    if what == A_LOCK and not native:
        others = may_own(history, node, others)
    ends_itself = has_timeout(node) and not native  # and looks again: whoever joins it is no way on
    leading = [one for one in others if _leads_on(one) and (not native or may_serve(node, one))]
    leading = [one for one in leading if not (ends_itself and "thread_join" in one.inner)]
    owned = lock_taken(line_of(history, node.frame)) if what == A_LOCK and not native else ""
    holders = [one for one in leading if owned and holds(history, one, owned)]
    if holders:
        return f'the lock "{owned}"{HELD_BY}{holders[0].name or holders[0].tid}', tuple(leading), None
    return led_to(leading) if leading else _ends_here(history, job, node, others)


def _ends_here(history: History, job: Job, node: Node, others: list[Node]) -> tuple[str, tuple[Node, ...], End]:
    """What a thread waits for that no other thread of its process leads on from; ``others`` may release it, the graph says whether."""
    native, what = in_native_code(history, node), awaited(node)
    if node.motion.frozen is False:
        return "something that unblocks it now and then", (), End("other", node)
    if node.wait is not None and node.wait.kind == "poll" and not node.wait.forever:
        return "an event", (), End("other", node)
    locked = tuple(other.tid for other in others if waits_forever(other))
    if native and not nobody_left(history, node):
        joined = node.wait.joined_tid if node.wait is not None else None
        told = "something in native code" if joined is None else f"the end of its thread {joined}, in native code"
        return told, (), End(NATIVE_WAIT, node, others=locked)
    if node.wait is not None and node.wait.shared and (relatives := _who_may(history, job, node)):
        mains = [node_of(history, job, pid) for pid in relatives]
        mains = [one for one in mains if not any_tag(one.inner, *LEADING_TAGS)]  # those wait for others themselves
        moving = tuple(one.pid for one in mains if one.wait is None or not one.wait.forever)
        who = ", ".join(map(str, (moving or relatives)[:3]))
        told = f"{what if what in MAY else A_LOCK} between processes, which pid {who} {MAY.get(what, 'may hold')}"
        return told, (), End("lock", node, others=moving or relatives, detail=OTHERS_MOVE if moving else "")
    if node.wait is not None and node.wait.shared and not node.wait.futex_unlinked and not locked:
        return f"{what} between processes", (), End("lock", node, detail=OUTSIDE_HELD)
    if waits_forever(node) and node.motion.samples > 1 and reduces(history, node.pid):
        told = f"{what}, which a collective in progress may deliver"
        return told, (), End("collective", node, others=locked, detail=CALLBACK)
    return what, (), End("lock", node, others=locked)


def _who_may(history: History, job: Job, node: Node) -> tuple[int, ...]:
    """Those who share what a thread waits for: who fills the same queue makes no room in it."""
    found = sharers(job, node)
    if awaited(node) != ROOM:
        return found
    return tuple(pid for pid in found if awaited(node_of(history, job, pid)) != ROOM) or found


def worked_for(others: list[Node]) -> list[Node]:
    """Of the threads of a process, those that may do what a thread that joins or supervises them waits for."""
    return [other for other in others if not ticks(other) and not idle(other)]


def other_threads(history: History, job: Job, node: Node) -> list[Node]:
    """The Python threads of the process but this one, and without the library's own servants.

    A thread that Python knows and that has no frame (autograd's engine between two passes) holds nothing of Python's.
    """
    return [
        one for one in beside(history, job, node) if not any_tag(one.tags, *SERVICE_TAGS) and _has_frames(history, one)
    ]


def _has_frames(history: History, node: Node) -> bool:
    seen = history.latest(r.Stack, node.pid, node.tid)
    return node.stack is not None or seen is None or bool(seen.reading.frames)


def _leads_on(node: Node) -> bool:
    """True if a thread stands still in a wait that leads further, or in one that is not for a lock."""
    held = node.state in ("T", "t", "D")
    if (node.motion.frozen is not True and not held) or node.inner == frozenset({"serve"}):
        return False
    if any_tag(node.inner, *LEADING_TAGS) or held:
        return True
    wait = node.wait
    if wait is None or wait.kind in ("futex", "poll", "other", "accept"):
        return False
    return wait.kind != "sleep" or (wait.remaining_seconds or 0.0) > ENDLESS_SECONDS


def nearest(history: History, node: Node, others: list[Node]) -> list[Node]:
    """Of threads that stand still, those that have not done so since long before this one: those were idle anyway."""
    own = silence(history, node)
    if own is None or not waits_forever(node):
        return others
    ages = {other.tid: silence(history, other) for other in others}
    return [other for other in others if (age := ages[other.tid]) is None or age <= own + BEFORE_SECONDS]


def sharers(job: Job, node: Node) -> tuple[int, ...]:
    """Other living processes of the job that may hold a lock between processes."""
    members = [m for m in job.members.values() if m.alive and m.role not in ("service", "launcher")]
    return tuple(m.pid for m in members if m.pid != node.pid and m.process.python)
