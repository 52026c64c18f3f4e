"""Who may let the end of a chain go on although no chain leads there: a handler of a signal, native code, a file of the kernel's.

Each of them may come at any time or never, so a wait that one of them may end is given the whole patience and is less sure.
Sources: Python's ``signal`` (handlers run in the main thread, and from 3.2 on interrupt its waits), SigCgt in /proc/PID/status
(proc(5)), timerfd_create(2), inotify(7), eventfd(2).
"""

import signal

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import has_ended, python_threads
from perfwatch.triage.roles.sights import GROUP_THREADS
from perfwatch.triage.waits.asked_for import A_TASK, HELD, awaited
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import OF_TENSORPIPE, in_native_code, of_gloo
from perfwatch.triage.waits.node import Node, node_of
from perfwatch.triage.waits.other_end import waited_on
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes.readings import Descriptor, ProcessUsage, Thread

# By which programs tell each other something, and timers; others end a program, or are caught to say how it failed.
TELLING = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGCONT,
    signal.SIGIO,
    signal.SIGHUP,
)
NO_NEWS = ("worker", "service")  # children whose end is a failure: torch catches SIGCHLD for its loader's
WAKING = ("timerfd", "inotify", "signalfd", "eventfd")  # files of the kernel's that wake whoever watches them
# Native threads that bring nothing about in the program: torch's own, CUDA's, NCCL's and those of allocators and compilers.
OF_LIBRARIES = (*GROUP_THREADS, OF_TENSORPIPE, "pt_", "cuda", "NCCL", "nccl", "gloo", "jemalloc", "kineto", "iou-")
OF_NCCL = "pt_nccl"  # who has such a thread has some of NCCL's own, which bear the name of the program
LISTENS = ("read", "recv", "poll")  # waits in which a native thread may hear of something


def unseen_helper(case: Case, chain: Chain) -> str:
    """Who may let the end of the chain go on that is no thread of Python's, in words; empty where nobody is known to be there."""
    node = chain.end.node
    if chain.end.kind == "sleep":  # or a wait for a signal
        asked = node.wait is not None and node.wait.call == "rt_sigtimedwait"
        rests = node.wait is not None and node.wait.kind == "sleep"
        return "whoever sends it that signal does" if asked else "" if rests else _handler(case, chain)
    if chain.end.kind != "lock" or node.wait is None:
        return ""
    held = node.wait.kind == "futex" and awaited(node) in HELD and not in_native_code(case.history, node)
    if held or any_tag(node.inner, "thread_join"):
        return ""
    return _handler(case, chain) or _kernel_file(case, node) or _native(case, chain)


def _handler(case: Case, chain: Chain) -> str:
    """The handlers of its process, where its main thread waits: at the end, or on the way to it."""
    pid = chain.end.node.pid
    if (pid, pid) not in ((link.pid, link.tid) for link in chain.links):
        return ""
    usage = case.history.latest(ProcessUsage, pid)
    caught = usage.reading.signals_caught if usage is not None else None
    ends = any(child.alive and child.role not in NO_NEWS for child in case.job.children(pid))
    telling = (*TELLING, signal.SIGCHLD) if ends else TELLING
    known = [one.name for one in telling if caught is not None and caught >> (one - 1) & 1]
    return f"its handler of {' or '.join(known)} does" if known else ""


def _kernel_file(case: Case, node: Node) -> str:
    files = waited_on(case.history, node, node.wait) if node.wait is not None else []
    found = next((file for file in files if _wakes(file)), None)
    return f"{found.target} (fd {found.fd}) wakes it" if found is not None else ""


def _wakes(file: Descriptor) -> bool:
    return file.target.startswith("anon_inode:") and file.target.partition(":")[2].strip("[]") in WAKING


def _native(case: Case, chain: Chain) -> str:
    """A thread of native code that listens, or one of Python's in a call of native code that is no part of the chain."""
    history, node = case.history, chain.end.node
    if awaited(node) == A_TASK or node.wait is None or node.wait.shared:
        return ""
    known, on_the_way = set(python_threads(history, node.pid)), {link.tid for link in chain.links}
    for tid in sorted(known - on_the_way):
        other = node_of(history, case.job, node.pid, tid)
        if in_native_code(history, other):
            return f"thread {other.name or tid}, which waits in native code, does"
    looks = [seen.reading for key in history.of(Thread, node.pid) if (seen := history.latest(Thread, *key))]
    if not known or any(one.name.startswith(OF_NCCL) for one in looks):
        return ""
    found = next((one for one in looks if one.tid not in known and _listens(case, one)), None)
    if found is None:
        return ""
    program = case.job.members[node.pid].process.name if node.pid in case.job.members else ""
    named = f" {found.name}" if found.name and found.name != program else ""  # else it bears the program's, as all do
    return f"a thread{named} of native code (tid {found.tid}) does"


def _listens(case: Case, thread: Thread) -> bool:
    if thread.name.startswith(OF_LIBRARIES) or thread.wait is None or has_ended(case.history, thread.pid, thread.tid):
        return False
    if of_gloo(case.history, thread.pid, thread.tid):
        return False
    return thread.wait.kind in LISTENS or (thread.wait.kind == "futex" and not thread.wait.forever)
