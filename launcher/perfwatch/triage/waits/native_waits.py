"""Waits inside of native code, which look like a lock of Python's that no thread releases.

A reader of object stores, an RPC library or a simulator's queue waits in a futex or on a descriptor of its own for threads that
Python does not know, and those for somebody far away. That such a wait lasts says little before the patience is over.
"""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import dominant
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.roles.job import GROUP_THREADS
from perfwatch.triage.waits.node import End, Node, threads_of
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import inner_frames, is_standard, is_user, package_of, short_name
from perfwatch_probes import readings as r

STARTED = "_bootstrap"  # the outermost function of a thread that Python's threading has started
WAITS = ("futex", "poll", "other")  # any other call says itself what it waits for
OF_PYTHON = frozenset({"acquire", "wait", "get", "put", "join"})  # methods of Python's own locks, events and queues
# How torch names the threads that carry remote calls; those for shared memory spin while they wait (measured: at a whole core).
OF_TENSORPIPE = "TP_"
OF_GLOO = "pt_gloo_runloop"  # each carries out one collective after the other
# The thread that moves gloo's bytes bears the program's name, and waits for them so long at a time (gloo, transport/tcp/loop.cc).
LOOP_SECONDS, LOOP_WATCHED_SECONDS = 0.01, 30.0


def in_native_code(history: History, node: Node) -> bool:
    """Whether a thread waits in a call of native code that is no lock, queue or event of Python's.

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
    """True if every thread of a process without a Python frame is blocked in a futex without a timeout."""
    return all(map(_parked, _native(history, pid)))


def nobody_left(history: History, node: Node) -> bool:
    """True if no thread of its process can wake one that waits in a futex of that process alone: all wait so, without a timeout."""
    alive = _alive(history, node.pid)
    used = history.latest(r.ProcessUsage, node.pid)
    return used is not None and used.reading.threads <= len(alive) and all(map(_parked, alive))


def may_serve(node: Node, other: Node) -> bool:
    """Whether native code may wait for a thread of Python's: of a library's, one that it called itself or that is in it too."""
    if other.stack is None or node.stack is None or short_name(other.stack.frames[-1].function) != STARTED:
        return True
    own = {package_of(frame) for frame in inner_frames(node.stack)} - {None}
    return not own or any(package_of(frame) in own for frame in other.stack.frames)


def carries(history: History, pid: int, tid: int) -> bool:
    """Whether a thread of torch's carries messages between ranks: it may spin while all wait for one, and holds no lock of Python's."""
    seen = history.latest(r.Thread, pid, tid)
    return seen is not None and seen.reading.name.startswith((*GROUP_THREADS, OF_TENSORPIPE))


def reduces(history: History, pid: int) -> bool:
    """Whether a collective of gloo's is under way in a process: its callback may let any thread of that process go on.

    A thread of the group waits for its next collective without a timeout, and within one for its peers with the group's timeout
    (torch, ProcessGroupGloo.cpp, ``runLoop``; measured with 2.13). A future of NCCL's is complete as soon as its kernel is
    launched: its callbacks wait for nobody.
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
