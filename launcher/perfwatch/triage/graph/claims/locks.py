"""Locks, barriers, conditions, queues and joins of threads: all of these are futexes, which another thread releases.

Complete unless something that is no Python thread may release it: a signal handler, a timer of the kernel's, native code.
"""

import signal

from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import OUTSIDE, Builder
from perfwatch.triage.graph.model import Acts, Basis, Kind, NativeCode, Resource, Role, Task, Unread
from perfwatch.triage.graph.thresholds import FRESH_SECONDS
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import GROUP_THREADS, Member
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.locks import A_BARRIER, A_CONDITION, A_LOCK, HELD, awaited, owners
from perfwatch.triage.waits.native_waits import all_parked, in_native_code, of_gloo, reduces
from perfwatch.triage.waits.node import Node, node_of, threads_of, waited_on
from perfwatch.triage.waits.threads import other_threads, sharers
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import inner_frames, is_standard, is_user
from perfwatch_probes import readings as r

# Signals whose handlers release waits; the others (SIGINT, SIGTERM, crashes) end the process.
TELLING = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGCONT,
    signal.SIGIO,
    signal.SIGHUP,
)
KERNEL_FILES = ("timerfd", "inotify", "signalfd", "eventfd")
LIBRARY_THREADS = (*GROUP_THREADS, "TP_", "pt_", "cuda", "NCCL", "nccl", "gloo", "jemalloc", "kineto", "iou-")
A_QUEUE = "an item in a queue"


def lock(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The holder by the text of a ``with`` block, or else every other thread of the process."""
    wait = node.wait
    what = _by_method(built, node, awaited(node))
    native = in_native_code(built.history, node)
    gone = [one.pid for one in built.job.members.values() if _was_python(one)]
    why = _unseen_releaser(built, node, what, native, gone)
    resource = Resource(Kind.NATIVE if native else _kind(what), task.key, complete=not why, why=why, basis=Basis.STACK)
    if native:
        built.claim_pair_holders(resource, node)
    if what != A_LOCK and reduces(built.history, node.pid):  # its callback runs once all ranks have come
        built.claim_collective(resource)
    known = owners(built.history, node, what, other_threads(built.history, built.job, node))
    for other in known:
        role = Role.HOLDS if what == A_LOCK else Role.PROVIDES
        built.graph.claim(built.thread(other.pid, other.tid), resource, role, Basis.TEXT)
    if not known:
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
    elif what not in HELD and "end" not in what:
        claim_native_code(built, resource, node)
    if wait is not None and wait.shared:
        for pid in (*(one for one in sharers(built.job, node) if built.matters(one)), *gone):
            built.graph.claim(built.process(pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if native or (wait is not None and wait.kind == "poll"):
        built.claim_descendants(resource, node.pid)
    if _is_in_a_library(node):
        for servant in _servants(built, node):
            built.graph.claim(built.thread(node.pid, servant), resource, Role.MAY_PROVIDE, Basis.STACK)
    task.waits = (resource,)


def _was_python(member: Member) -> bool:
    """True if it is a process of the job that has ended: it may have ended while it held a shared lock."""
    return not member.alive and member.process.python and member.role != "service"


def _unseen_releaser(built: Builder, node: Node, what: str, native: bool, gone: list[int]) -> str:
    """What may release it that is no known thread; empty if every possible releaser is seen."""
    wait = node.wait
    if wait is not None and wait.shared and not sharers(built.job, node) and not gone:
        return "a process outside of the job may share it"
    if native:
        return NativeCode("native code")
    if wait is not None and not wait.forever:
        return "it has a timeout"
    at_own_line = node.stack is not None and node.stack.frames[:1] == (node.frame,)
    if at_own_line and line_of(built.history, node.frame) is None and not all_parked(built.history, node.pid):
        return "its line was not read"
    if wait is not None and wait.kind == "poll" and (outside := _file_of_others(built, node)):
        return outside
    if _is_in_a_library(node) and _servants(built, node):
        return "a thread of the library that it called"
    if what in HELD or "end" in what:  # only the thread that holds a lock, or that ends, releases it
        return ""
    return kernel_or_native_releaser(built, node)


def _is_in_a_library(node: Node) -> bool:
    """True if the wait is in a library that the program called, and not in CPython's own code."""
    return node.stack is not None and any(
        not is_standard(frame) and not is_user(frame) for frame in inner_frames(node.stack)
    )


def _servants(built: Builder, node: Node) -> list[int]:
    """The threads that libraries keep in the process, which serve only the libraries' own calls."""
    others = {one.tid for one in other_threads(built.history, built.job, node)}
    rest = set(python_threads(built.history, node.pid)) - others - {node.tid}
    return [tid for tid in sorted(rest) if node_of(built.history, built.job, node.pid, tid).stack is not None]


def _file_of_others(built: Builder, node: Node) -> str:
    """An event loop wakes for any file that it watches: what may come over one from outside of the job, if anything may."""
    if node.wait is None:
        return ""
    files = waited_on(built.history, node)
    if not files:
        return Unread("the files that it watches were not read")
    for file in files:
        if file.socket is None and file.kind not in ("pipe", "anon", "file"):
            of_kernel = file.target.partition(":")[2].strip("[]") in KERNEL_FILES
            return (Acts if of_kernel else str)(f"what comes over {file.target}")
        if file.socket is not None and file.socket.family != "unix":
            return "a connection"
        if file.socket is not None and set(file.socket.peer_pids) - set(built.job.members):
            return OUTSIDE
    return ""


def kernel_or_native_releaser(built: Builder, node: Node) -> str:
    """What may act for the process that is no Python thread; empty if nothing is seen that may."""
    history = built.history
    used = history.latest(r.ProcessUsage, node.pid)
    caught = used.reading.signals_caught if used is not None else None
    has_children = any(
        child.alive and child.role not in ("worker", "service") for child in built.job.children(node.pid)
    )
    telling = (*TELLING, signal.SIGCHLD) if has_children else TELLING
    if node.tid == node.pid and caught is not None and any(caught >> (one - 1) & 1 for one in telling):
        return Acts("a signal handler")
    files = waited_on(history, node)
    kernel = (file for file in files if file.target.partition(":")[2].strip("[]") in KERNEL_FILES)
    if any(not (file.kind == "eventfd" and file.writers) for file in kernel):
        return Acts("a timer or watch of the kernel")
    known = set(python_threads(history, node.pid))
    looks = threads_of(history, node.pid)
    with_nccl = any(one.name.startswith("pt_nccl") for one in looks)
    if any(tid not in known for tid in _stale(built, node.pid)):
        return Unread("a thread that was not sampled lately")
    for one in looks:
        if one.tid in known or not known or one.wait is None or one.name.startswith(LIBRARY_THREADS):
            continue
        parked = (one.wait.kind == "futex" and one.wait.forever) or one.wait.kind == "accept"
        if not parked and not with_nccl and not of_gloo(history, one.pid, one.tid):
            return Acts(f"a native thread that may act ({one.name})")
    return ""


def claim_native_code(built: Builder, resource: Resource, node: Node) -> None:
    """Claim the Python threads that are in native code: it may release anything before it returns."""
    for tid in python_threads(built.history, node.pid):
        if tid != node.tid and in_native_code(built.history, node_of(built.history, built.job, node.pid, tid)):
            built.graph.claim(built.thread(node.pid, tid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)


def _stale(built: Builder, pid: int) -> list[int]:
    """Threads of which the last sample is too old to say what they do now."""
    looks = (built.history.latest(r.Thread, *key) for key in built.history.of(r.Thread, pid))
    return [
        one.reading.tid
        for one in looks
        if one is not None and one.at < built.case.at - FRESH_SECONDS and one.reading.state not in ("X", "Z")
    ]


def _by_method(built: Builder, node: Node, what: str) -> str:
    """What looks like a lock may be a queue or an event made in C: the method that the line calls shows which."""
    if what != A_LOCK or node.stack is None or not node.stack.frames or node.stack.frames[0] != node.frame:
        return what
    line = line_of(built.history, node.frame)
    called = names(line.calls) if line is not None else frozenset()
    if "acquire" in called or (line is not None and line.text.strip().startswith("with ")):
        return what
    return A_QUEUE if "get" in called else A_CONDITION if "wait" in called else what


def _kind(what: str) -> Kind:
    if what == A_LOCK:
        return Kind.LOCK
    if what == A_BARRIER:
        return Kind.BARRIER
    return Kind.QUEUE if "queue" in what else Kind.JOIN if "end" in what else Kind.CONDITION
