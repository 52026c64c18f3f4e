"""What may end a wait although no chain leads there: processes outside of the job, signal handlers, files of the kernel, native code."""

import signal

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.motion import has_ended, motion, python_threads
from perfwatch.triage.roles.sights import GROUP_THREADS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import A_TASK, HELD, awaited
from perfwatch.triage.waits.native_waits import OF_TENSORPIPE, in_native_code, of_gloo
from perfwatch.triage.waits.node import End, Node, node_of
from perfwatch.triage.waits.other_end import waited_on
from perfwatch.triage.words.frames import any_tag
from perfwatch_probes.readings import Descriptor, ProcessUsage, Thread

WATCHED_SECONDS = 3.0
UNREADABLE_SECONDS = 10.0  # after these it is not looked at any more whether it can be read: its file may be hidden
NAP_SECONDS = 10.0  # a shorter sleep is one of many: who polls or backs off wakes, and sleeps again
JUST_WOKEN_SECONDS = 2.0  # by then a later look has told what it does instead
HELD_BY_OTHERS = (
    "file_lock",
    "pipe_full",
)  # ends that others hold: a lock, or the only end from which a pipe could be emptied
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


def holders(case: Case, end: End) -> tuple[int, ...]:
    """Those who hold the lock, or the other side of the full pipe, at the end of a chain and are no members of the job."""
    return tuple(pid for pid in end.others if pid not in case.job.members) if end.kind in HELD_BY_OTHERS else ()


def workers(case: Case, end: End) -> tuple[int, ...]:
    """What holders outside of the job have started: it works for them, perhaps."""
    if end.descriptor is None or not holders(case, end):
        return ()
    return tuple(pid for pid in end.descriptor.holders_started if pid not in case.job.members)


def said(case: Case, pid: int) -> str:
    """A process outside of the job, and the call in which its main thread waits."""
    look = case.history.latest(Thread, pid, pid)
    if look is not None and look.reading.state == "T":
        return f"pid {pid} outside of the job, which is stopped"
    wait = look.reading.wait if look is not None else None
    return f"pid {pid} outside of the job" + (f", which waits in {wait.call}" if wait is not None else "")


def unwatched_seconds(case: Case, end: End) -> float:
    """For how much longer those outside must be watched; 0 where there are none, and where they cannot be."""
    pids = (*holders(case, end), *workers(case, end))
    if not pids:
        return 0.0
    spans = [span for pid in pids if (span := case.history.span(ProcessUsage, pid)) is not None]
    if len(spans) == len(pids):
        return max(0.0, WATCHED_SECONDS - min(spans))
    return max(0.0, UNREADABLE_SECONDS - _named_for(case, end))


def ceiling(case: Case, end: End) -> float:
    """The most that a hang may be said with where it depends on a process outside of the job."""
    pids = (*holders(case, end), *workers(case, end))
    return 1.0 if all(_rests_for_ever(case, pid) for pid in pids) else MAY_COME


def asks_elsewhere(case: Case, end: End) -> bool:
    """Whether each thread of theirs rests for ever, or in a read without a deadline: for a key, as a pager does."""
    looks = [look for pid in holders(case, end) for look in _looks(case, pid)]
    return bool(looks) and all(look is not None and _asks(case, look.reading) for look in looks)


def _asks(case: Case, thread: Thread) -> bool:
    return _for_ever(case, thread) or (thread.wait is not None and thread.wait.kind == "read")


def wakes_in(case: Case, end: End) -> float | None:
    """Seconds until a holder outside, or what it has started, wakes from a sleep that is no nap; None where none sleeps so."""
    looks = (case.history.latest(Thread, pid, pid) for pid in (*holders(case, end), *workers(case, end)))
    left = [seconds for look in looks if look is not None and (seconds := _sleeps_for(case, look)) is not None]
    return min(left, default=None)


def held_for(case: Case, end: End) -> tuple[float, int] | None:
    """For how many seconds the lock has been held at least, and by whom: no thread of its holders, or of what they started, ran since.

    What does not run takes no lock. None where a holder is a member of the job, or not all of its threads are known.
    """
    pids = holders(case, end)
    if not pids or len(pids) < len(end.others):
        return None
    rested = min(_rested(case, pid) for pid in (*pids, *workers(case, end)))
    return (rested, pids[0]) if rested > 0.0 else None


def _rested(case: Case, pid: int) -> float:
    """Seconds since any thread of a process ran; 0 where that is not known of all of them."""
    looks = _looks(case, pid)
    ages = [
        look.reading.ran_ago_seconds + case.at - look.at
        for look in looks
        if look is not None and look.reading.ran_ago_seconds is not None and look.reading.state != "R"
    ]
    return min(ages) if ages and len(ages) == len(looks) else 0.0


def _looks(case: Case, pid: int) -> list[Seen[Thread] | None]:
    """The latest look at each thread of a process; empty where there are more than were looked at."""
    used = case.history.latest(ProcessUsage, pid)
    looks = [
        case.history.latest(Thread, *key) for key in case.history.of(Thread, pid) if not has_ended(case.history, *key)
    ]
    return looks if used is not None and len(looks) >= used.reading.threads else []


def _sleeps_for(case: Case, look: Seen[Thread]) -> float | None:
    wait = look.reading.wait
    if wait is None or wait.kind != "sleep" or wait.remaining_seconds is None:
        return None
    left = wait.remaining_seconds - (case.at - look.at)
    whole = wait.remaining_seconds + (look.reading.ran_ago_seconds or 0.0)
    return max(0.0, left) if whole >= NAP_SECONDS and left > -JUST_WOKEN_SECONDS else None


def _rests_for_ever(case: Case, pid: int) -> bool:
    """Whether all threads of a process are stopped, or wait without a deadline for what only another one of them can do."""
    looks = _looks(case, pid)
    return bool(looks) and all(look is not None and _for_ever(case, look.reading) for look in looks)


def _for_ever(case: Case, thread: Thread) -> bool:
    if thread.state == "T":
        return True
    wait = thread.wait
    if wait is None or motion(case.history, thread.pid, thread.tid).frozen is not True:
        return False
    return wait.call == "pause" or (wait.kind == "futex" and wait.forever and not wait.shared)


def _named_for(case: Case, end: End) -> float:
    """Seconds since a holder outside was first named."""
    if end.descriptor is None:
        return 0.0
    looks = case.history.series(Descriptor, end.node.pid, end.descriptor.fd)
    named = [look.at for look in looks if {*look.reading.lock_holders, *look.reading.readers}.intersection(end.others)]
    return case.at - min(named, default=case.at)


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
