"""Who can release what, by kind of resource: threads, locks, processes, open files. ``collectives`` has calls between ranks, and cards."""

import signal
from dataclasses import replace

from perfwatch.triage.cards.gpu import idle_card_seconds, regimes, unseen
from perfwatch.triage.case import Case
from perfwatch.triage.graph.activity import ThreadActivity, activity_of
from perfwatch.triage.graph.builder import NOT_SAMPLED, OUTSIDE, Builder, end_of
from perfwatch.triage.graph.model import (
    Activity,
    Acts,
    Basis,
    Elsewhere,
    Ends,
    Fate,
    Kind,
    NativeCode,
    Needs,
    Prospect,
    Resource,
    Role,
    Stale,
    Task,
    Unread,
    Unsampled,
)
from perfwatch.triage.graph.thresholds import (
    BYTES_SECONDS,
    FRESH_SECONDS,
    ONE_CALL_TIMES,
    POLLING_SECONDS,
    STARVED_TIMES,
)
from perfwatch.triage.moving.loops import Loop, loop_of
from perfwatch.triage.moving.motion import gil_passed_at, has_ended, python_threads
from perfwatch.triage.moving.thresholds import (
    ARRIVING_BYTES,
    KEEPS_WAITING_SECONDS,
    LATE_SECONDS,
    MEANT_SECONDS,
    SIGN_OF_LIFE,
)
from perfwatch.triage.moving.work import passed, work_of
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import GROUP_THREADS
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES
from perfwatch.triage.waits.chain import SIGNAL_WAITS, Edge
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.napping import polls_by_programs
from perfwatch.triage.waits.node import EVENT_LOOP, End, Node, idle, node_of, threads_of, waited_on
from perfwatch.triage.waits.other_end import sends
from perfwatch.triage.waits.threads import (
    A_BARRIER,
    A_CONDITION,
    A_LOCK,
    HELD,
    all_parked,
    awaited,
    gil_waiters,
    in_native_code,
    listeners,
    nobody_left,
    of_gloo,
    other_threads,
    owners,
    reduces,
    sharers,
)
from perfwatch.triage.words.code import line_of, names, next_try_seconds
from perfwatch.triage.words.frames import inner_frames, is_standard, is_user
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Stack

# Threads that wait for no resource that is known: they run, sleep, poll, or wait for something that cannot be seen.
# One that runs is LIVE, unless the loop that it runs in gives nothing: then it waits for the end of that loop.

# Running


def running(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The training thread makes no step while it is in a loop; any other thread hands nothing over if its loop gives nothing."""
    loop = built.loop(task.key, node)
    is_start = task.key in built.starts.values()
    is_native = end_of(edge).kind == "native" and loop.lines <= 1 and loop.ends is not Ends.ONE_CALL
    if is_start and is_native and (spun := _spins(built, task, node)) is not None:
        task.waits = (spun,)
        return
    gives_nothing = _may_turn_for_ever(loop) and not loop.gives
    if not gives_nothing and not is_start:  # whatever it may hand over, has anything come of it?
        gives_nothing = _has_had_its_time(built, node, loop, seen)
    if is_native or not (is_start or gives_nothing):
        task.fate = Fate(Prospect.LIVE, works=seen.work.sign, why="it runs")
        return
    hardly = is_start and built.case.profile(built.job.members[node.pid], FRESH_SECONDS).samples < ENOUGH_SAMPLES
    why = Unsampled("what it runs was hardly sampled") if hardly else "the loop may end"
    resource = Resource(Kind.LOOP, task.key, complete=False, why=why, basis=Basis.TEXT)
    task.waits = (resource,)
    if loop.tests_only or (gives_nothing and loop.ends is not Ends.ONE_CALL):
        built.claim_other_threads(resource, node, Basis.TEXT)
        built.claim_descendants(resource, node.pid)
        built.claim_ranks(resource)
    elif loop.ends in (Ends.ONE_CALL, Ends.UNREAD):
        built.claim_descendants(resource, node.pid)


def _may_turn_for_ever(loop: Loop) -> bool:
    return loop.ends in (Ends.CONDITION, Ends.NEVER)


def _has_had_its_time(built: Builder, node: Node, loop: Loop, seen: ThreadActivity) -> bool:
    """True if a thread has run for so long, and the rank that waits got nothing, that it may never give anything.

    A loop without a known end is given the hang timeout, and a loop that counts and moves no data five times as long.
    """
    waited = built.waited_seconds(node.pid)
    if loop.ends is Ends.ONE_CALL:
        waited = max(waited, _seconds_in_call(built, node))
        return waited >= one_call_times(built.case, node, loop) * built.hang_timeout
    if _may_turn_for_ever(loop):
        return waited >= built.hang_timeout
    moves_data = seen.work.data >= ARRIVING_BYTES  # of which there is an end
    return loop.ends is Ends.COUNTS and not moves_data and built.nothing_came_of(node.pid)


def one_call_times(case: Case, node: Node, loop: Loop) -> float:
    """Times the hang timeout that a call is given which may not return: less if it keeps the GIL from a thread that trains."""
    trains = case.progress[node.pid].thread if node.pid in case.progress else None
    starves = loop.expression and trains in gil_waiters(case.history, case.job, node)
    return STARVED_TIMES if starves else ONE_CALL_TIMES


def reads_for_ever(built: Builder, node: Node, kind: str) -> bool:
    """True if a thread turns in a loop without a known end, and nothing came of it for long: the data that it moves may have none."""
    return kind == "python" and _may_turn_for_ever(loop_of(built.history, node)) and built.nothing_came_of(node.pid)


def _seconds_in_call(built: Builder, node: Node) -> float:
    """Since the first of the last samples that show one and the same stack."""
    looks = [one for one in built.history.series(Stack, node.pid, node.tid) if one.reading.frames]
    began = built.case.at
    for one in reversed(looks):
        if one.reading.frames != looks[-1].reading.frames:
            break
        began = one.at - one.reading.span_seconds
    return built.case.at - max(began, gil_passed_at(built.history, node.pid, node.tid))


def _spins(built: Builder, task: Task, node: Node) -> Resource | None:
    """What a thread waits for that uses a core in native code and gets no further: an idle card, or another rank."""
    if in_sync(built.history, node.stack) and idle_card_seconds(built.history, node.pid) is not None:
        why = "a host function may hold up its stream"
        resource = Resource(Kind.GPU, ("stream", node.pid), complete=False, why=why, basis=Basis.STACK)
    elif built.case.progress[node.pid].kind == "still" or unseen(built.history, node.pid):
        why = Unread("what it runs in native code")
        resource = Resource(Kind.NATIVE, task.key, complete=False, why=why, basis=Basis.ELIMINATION)
    else:
        return None
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    return resource


# Sleeping, polling a flag, waiting until a deadline


def sleeping(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """A sleep for hours is settled; one that ends soon is due; a thread that polls waits for whatever it tests.

    A training thread may mean to rest for minutes. What else keeps one waiting for so long is no reason to wait with it.
    """
    left = None if seen.until is None else seen.until - built.case.at
    next_try = next_try_seconds(built.case.history, node.thread, node.stack)
    if left is not None and next_try is None and left > max(MEANT_SECONDS, built.case.patience_seconds):
        task.fate = Fate(Prospect.SETTLED, why="it sleeps for hours")
        return
    loop = loop_of(built.history, node)
    if loop.idles and task.key not in built.starts.values():
        task.fate = Fate(Prospect.SETTLED, why="it does nothing but sleep")
        return
    for_ever = loop.ends is Ends.NEVER and loop.tests_only
    if left is None or for_ever or (seen.state is Activity.POLLS and not _gets_somewhere(loop, node)):
        built.loop(task.key, node)
        signalled = node.wait is not None and node.wait.call in SIGNAL_WAITS
        why = Acts("a process that sends the signal") if signalled else "it polls"
        resource = Resource(Kind.FLAG, task.key, complete=False, why=why, basis=Basis.TEXT)
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
        built.claim_descendants(resource, node.pid)
        built.claim_ranks(resource)
        task.waits = (resource,)
        return
    rests = left + (node.motion.ran_ago_seconds or 0.0)
    long = rests > KEEPS_WAITING_SECONDS and left > built.hang_timeout and task.key not in built.starts.values()
    if next_try is None and (long or gil_waiters(built.history, built.job, node)):
        why = "it sleeps for minutes" if long else "it sleeps and keeps the GIL from threads that ask for it"
        task.waits = (Resource(Kind.TIMER, task.key, complete=False, why=why),)
        return
    again = next_try is not None and rests < built.case.patience_seconds
    task.fate = Fate(Prospect.DUE, until=seen.until or built.case.at, works=0.0 if again else 1.0, why="it sleeps")


def _gets_somewhere(loop: Loop, node: Node) -> bool:
    """True if a thread that sleeps again and again gets somewhere: it counts its sleeps, or hands something over after each."""
    if node.wait is None or node.thread is None:
        return False
    total = (node.wait.remaining_seconds or 0.0) + (node.thread.ran_ago_seconds or 0.0)
    counts = total >= POLLING_SECONDS and loop.ends is Ends.COUNTS
    return counts or (loop.gives and loop.ends in (Ends.NEVER, Ends.COUNTS))


def own_deadline(built: Builder, task: Task, node: Node, seen: ThreadActivity, alone: bool) -> None:
    """A wait with a deadline of its own ends then, in its first round.

    In an event loop a timer may fire in any round, until rounds for the hang timeout have brought nothing.

    ``alone``: no other process takes part, so the deadline is what the wait is for.
    """
    wait = node.wait
    if task.fate is not None or wait is None or wait.kind == "sleep" or seen.until is None:
        return
    silent = seen.silence.seconds if seen.silence is not None else 0.0
    in_loop = EVENT_LOOP in node.inner and wait.remaining_seconds is not None and silent < temporal(built.case)
    if not in_loop and seen.state is not Activity.SLEEPS:
        return
    first = silent <= (wait.remaining_seconds or 0.0) + (node.motion.ran_ago_seconds or 0.0) + LATE_SECONDS
    if -LATE_SECONDS < seen.until - built.case.at <= MEANT_SECONDS and (first or in_loop):
        timer = Resource(Kind.TIMER, ("timer", task.key), until=seen.until, sure=1.0 if alone else 0.0)
        task.waits = (*task.waits, timer)


# Waiting for something unknown: never complete


NO_STACK = Unread("its stack was not read")


def unknown(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Other threads and children may release it, and so may what cannot be seen."""
    why = edge.waits_for if node.stack is not None else NOT_SAMPLED if node.thread is None else NO_STACK
    resource = Resource(Kind.UNKNOWN, task.key, complete=False, why=why, basis=Basis.ELIMINATION)
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    built.claim_descendants(resource, node.pid)
    built.claim_pair_holders(resource, node)
    works = work_of(built.history, node.pid).sign if node.thread is None else 0.0
    if works >= SIGN_OF_LIFE:  # of whichever of its threads
        leaf = built.lives(("work", node.pid), works, f"pid {node.pid} works")
        built.graph.claim(leaf, resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    task.waits = (resource,)


def other(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Another wait, of a thread that may move now and then, and does more than poll."""
    works = seen.work.sign
    if node.motion.frozen is False and (seen.state is not Activity.POLLS or works >= SIGN_OF_LIFE):
        task.fate = Fate(Prospect.LIVE, works=works, why="it moves now and then")
    else:
        unknown(built, task, node, edge, seen)


# Locks, barriers, conditions, queues and joins of threads: all of these are futexes, which another thread releases.
# Complete unless something that is no Python thread may release it: a signal handler, a timer of the kernel's, native code.

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
# Each makes libkineto start a thread of its own that runs no Python (libkineto, ConfigLoader.cpp).
ARMED = frozenset({"KINETO_USE_DAEMON", "PERFWATCH_PROFILER"})
LIBRARY_THREADS = (*GROUP_THREADS, "TP_", "pt_", "cuda", "NCCL", "nccl", "gloo", "jemalloc", "kineto", "iou-")
A_QUEUE = "an item in a queue"


def lock(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The holder by the text of a ``with`` block, or else every other thread of the process."""
    wait = node.wait
    what = _by_method(built, node, awaited(node))
    in_native = in_native_code(built.history, node)
    native = in_native and not nobody_left(built.history, node)
    # It may have held a shared lock.
    gone = [
        one.pid for one in built.job.members.values() if not one.alive and one.process.python and one.role != "service"
    ]
    why = _unseen_releaser(built, node, what, native, gone)
    resource = Resource(Kind.NATIVE if native else _kind(what), task.key, complete=not why, why=why, basis=Basis.STACK)
    if native:
        built.claim_pair_holders(resource, node)
    if what != A_LOCK and reduces(built.history, node.pid):  # its callback runs once all ranks have come
        built.claim_collective(resource)
    others = other_threads(built.history, built.job, node)
    known = owners(built.history, node, what, others)
    for other in known:
        role = Role.HOLDS if what == A_LOCK else Role.PROVIDES
        built.graph.claim(built.thread(other.pid, other.tid), resource, role, Basis.TEXT)
    if not known:
        owns_none = (
            {*listeners(built.history, node, others), *((one.pid, one.tid) for one in others if idle(one))}
            if what == A_LOCK and not native
            else ()
        )
        built.claim_other_threads(resource, node, Basis.ELIMINATION, owns_none)
    elif what not in HELD and "end" not in what:
        for tid in python_threads(built.history, node.pid):  # native code may release anything before it returns
            if tid != node.tid and in_native_code(built.history, node_of(built.history, built.job, node.pid, tid)):
                built.graph.claim(built.thread(node.pid, tid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if wait is not None and wait.shared:
        for pid in (*(one for one in sharers(built.job, node) if built.matters(one)), *gone):
            built.graph.claim(built.process(pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if in_native or (wait is not None and wait.kind == "poll"):
        built.claim_descendants(resource, node.pid)
    if _is_in_a_library(node):
        for servant in _servants(built, node):
            built.graph.claim(built.thread(node.pid, servant), resource, Role.MAY_PROVIDE, Basis.STACK)
    task.waits = (resource,)


def _unseen_releaser(built: Builder, node: Node, what: str, native: bool, gone: list[int]) -> str:
    """What may release it that is no known thread; empty if every possible releaser is seen."""
    wait = node.wait
    if wait is not None and wait.shared and not wait.futex_unlinked and not sharers(built.job, node) and not gone:
        return "a process outside of the job may share it"
    private = wait is not None and wait.forever and not wait.shared
    by_card = bool(regimes(built.history, node.pid)) or unseen(built.history, node.pid)
    if native and (by_card or not private or kernel_or_native_releaser(built, node, native)):
        return NativeCode("native code")
    if wait is not None and not wait.forever:
        return "it has a timeout"
    at_own_line = node.stack is not None and node.stack.frames[:1] == (node.frame,)
    if at_own_line and line_of(built.history, node.frame) is None and not all_parked(built.history, node.pid):
        return "its line was not read"
    if wait is not None and wait.kind == "poll" and (outside := _file_of_others(built, node)):
        return outside
    if what in HELD or "end" in what:  # only the thread that holds a lock, or that ends, releases it
        return ""
    if _is_in_a_library(node) and _servants(built, node):
        return "a thread of the library that it called"
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


def kernel_or_native_releaser(built: Builder, node: Node, native: bool = False) -> str:
    """What may act for the process that is no Python thread; empty if nothing is seen that may.

    ``native``: for a wait in native code, which threads of libraries may release as well.
    """
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
        return Stale("a thread that was not sampled lately")
    profilers = _profilers_thread(built, node.pid, [one for one in looks if one.tid not in known])
    for one in looks:
        of_library = one.tid == profilers or with_nccl or one.name.startswith(LIBRARY_THREADS)
        if one.tid in known or not known or one.wait is None or (of_library and not native):
            continue
        at_rest = one.wait.kind == "futex" and one.wait.forever and not one.wait.shared
        if not at_rest and one.wait.kind != "accept" and (native or not of_gloo(history, one.pid, one.tid)):
            return Acts(f"a native thread that may act ({one.name})")
    return ""


def _profilers_thread(built: Builder, pid: int, native: list[r.Thread]) -> int | None:
    """Of a process that is armed for torch's profiler, the profiler's thread, which asks for a task at intervals; None if not known."""
    if not ARMED & built.job.members[pid].process.environment.keys():
        return None
    looks = {one.tid: [seen.reading.wait for seen in built.history.series(r.Thread, pid, one.tid)] for one in native}
    ticks = [tid for tid, waits in looks.items() if any(w and w.kind == "futex" and not w.forever for w in waits)]
    return ticks[0] if len(ticks) == 1 else None


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


# Processes as releasers, children and workers that have ended, idle pools, and ways that lead to other tasks

# by kind of edge: what is waited for
KINDS = {
    "loader": Kind.POOL,
    "pool": Kind.POOL,
    "child": Kind.CHILD,
    "join_process": Kind.CHILD,
    "supervised": Kind.CHILD,
    "pipe": Kind.PIPE,
    "socket": Kind.PIPE,
    "connection": Kind.SOCKET,
    "gil": Kind.GIL,
    "lock": Kind.LOCK,
    "rpc": Kind.CALL,
    "call": Kind.CALL,
    "peers": Kind.CALL,
    "remote": Kind.CALL,
    "gpu": Kind.GPU,
}
OF_ALL = ("join_process", "peers")  # edges of which all targets are needed


def process(built: Builder, task: Task, pid: int) -> None:
    """The main thread provides; its other threads and its children may. CPU time or bytes of the process are work."""
    member = built.job.members.get(pid)
    if member is not None and not member.alive:
        task.fate, task.activity = Fate(Prospect.SETTLED, why="it has ended"), Activity.GONE
        task.silence = built.since_end(pid)
        return
    sampled = built.is_sampled(pid)
    why = OUTSIDE if member is None else "" if sampled else NOT_SAMPLED
    polls = member is not None and polls_by_programs(built.case, member)
    why = "it polls" if polls else why
    resource = Resource(
        Kind.PROCESS, ("process", pid), complete=not why, why=why, strangers=why == OUTSIDE and not sampled
    )
    task.waits = (resource,)
    if polls:
        return
    if _is_stopped(built, pid):  # with all of its threads, whatever it used until then
        resource = replace(resource, complete=True, why="", strangers=False)
        task.waits = (resource,)
        built.graph.claim(built.thread(pid, pid), resource, Role.PROVIDES, Basis.KERNEL)
        return
    for child in built.job.children(pid):
        if child.alive and child.role not in ("service", "worker", "rank") and built.matters(child.pid):
            built.graph.claim(built.process(child.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if not sampled:
        return
    python = python_threads(built.history, pid)
    alive = {key[1] for key in built.history.of(r.Thread, pid) if not has_ended(built.history, *key)}
    tids = sorted({*alive, *python})
    for tid in [tid for tid in tids if not _accepts(built, pid, tid)] or tids or [pid]:
        if tid == pid or tid in python or not python:  # without a stack it is not known which are of Python
            role = Role.PROVIDES if tid == pid else Role.MAY_PROVIDE
            built.graph.claim(built.thread(pid, tid), resource, role, Basis.KERNEL)
    works = work_of(built.history, pid, [tid for tid in tids if tid == pid or tid in python]).sign
    if works >= SIGN_OF_LIFE:
        leaf = built.lives(("work", pid), works, f"pid {pid} works")
        built.graph.claim(leaf, resource, Role.PROVIDES, Basis.KERNEL)


def _is_stopped(built: Builder, pid: int) -> bool:
    """True if a signal has stopped a process, and it is not continued again and again."""
    last = built.history.latest(r.Thread, pid, pid)
    if last is None or last.reading.state != "T":
        return False
    node = built.node(built.thread(pid, pid))
    seen = activity_of(built.case, node)
    return seen.state is Activity.STOPPED and not seen.recurrent


def _accepts(built: Builder, pid: int, tid: int) -> bool:
    """True if a thread waits for new connections: it gives nothing to the tasks that are there."""
    seen = built.history.latest(r.Thread, pid, tid)
    return seen is not None and seen.reading.wait is not None and seen.reading.wait.kind == "accept"


def other_tasks(built: Builder, task: Task, node: Node, edge: Edge) -> None:
    """A wait whose releasers are known by functions of CPython, torch or Ray."""
    kind, needs = KINDS.get(edge.kind, Kind.UNKNOWN), Needs.ALL if edge.kind in OF_ALL else Needs.ANY
    signalled = node.wait is not None and node.wait.call in SIGNAL_WAITS
    why = "any process may send the signal" if signalled else ""
    resource = Resource(kind, (edge.kind, task.key), needs, complete=not signalled, why=why, basis=Basis.STACK)
    for target in edge.targets:
        same = target.pid == node.pid
        releaser = built.thread(target.pid, target.tid) if same else built.process(target.pid)
        built.graph.claim(releaser, resource, Role.PROVIDES, Basis.STACK)
    if kind in (Kind.PIPE, Kind.SOCKET):
        built.claim_arriving(resource, node)
    task.waits = (resource,)


def idle_pool(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """An idle pool whose result is awaited makes none; a server without a request waits for the next one."""
    if edge.kind in ("pool", "loader"):
        task.waits = (Resource(Kind.POOL, task.key, basis=Basis.ELIMINATION),)
    else:
        task.waits = (Resource(Kind.TASKS, task.key, complete=False, why=Unread("nothing was asked of it")),)


def ended_child(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Its releaser has ended."""
    pid = end_of(edge).node.pid
    resource = Resource(Kind.CHILD, ("child", pid), basis=Basis.STACK)
    built.graph.claim(built.gone(pid), resource, Role.PROVIDES, Basis.STACK)
    task.waits = (resource,)


# Open files: a pipe, an eventfd, a connection, a file or its lock, a terminal, a key of the store.
# Whatever holds the other end can release it. The far end of a connection is often on another host, so these are never complete.

ANY_PROCESS = "any process may open a FIFO"


# Pipes


def pipe(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete for a pipe whose ends the kernel lists; any process may open a FIFO."""
    end = end_of(edge)
    file = end.descriptor
    key = ("pipe", task.key if file is None else file.inode)
    why = _unseen_holder(end)
    resource = Resource(Kind.PIPE, key, complete=not why, why=why, strangers=bool(why))
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    own = file is not None and file.kind != "fifo" and node.pid in (*file.writers, *file.readers)
    if own and not end.others:  # a reader opens a FIFO for writing so as not to meet its end
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)


def _unseen_holder(end: End) -> str:
    """What may hold the other end and is not seen. A pipe whose other end no process held would have ended the wait."""
    file = end.descriptor
    if file is None or file.kind == "fifo":
        return ANY_PROCESS
    if file.kind == "tty":
        return ""
    holders = file.writers if end.kind == "pipe_empty" else file.readers
    return "" if holders else "the holder of the other end is not seen"


# Eventfds


def unknown_or_eventfd(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if the kernel lists the holders (Linux 5.2), and nothing but Python threads acts for them. Else it is unknown."""
    files = waited_on(built.history, node)
    if len(files) != 1 or files[0].kind != "eventfd" or not files[0].writers:
        unknown(built, task, node, edge, seen)
        return
    holders = [pid for pid in files[0].writers if pid != node.pid]
    why = kernel_or_native_releaser(built, node)
    resource = Resource(Kind.EVENTFD, ("eventfd", task.key), complete=not why, why=why)
    for pid in holders:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    task.waits = (resource,)


# Files and their locks


def file_lock(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The kernel lists the holders of a lock, and what processes outside of the job that hold it have started."""
    end = end_of(edge)
    why = "" if end.others else "the holder is not known"
    # of an opening that its children have inherited the kernel names the process that locked it
    started = (one for one in built.job.descendants(node.pid) if one.alive and one.role not in ("service", "worker"))
    if node.pid in end.others and any(started):
        why = "a process that it started may have inherited the lock"
    resource = Resource(
        Kind.FILE_LOCK, ("lock", end.detail or task.key), complete=not why, why=why, strangers=not end.others
    )
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
        if end.descriptor is not None and pid not in built.job.members:
            for below in end.descriptor.holders_started:
                built.graph.claim(built.process(below), resource, Role.MAY_PROVIDE, Basis.KERNEL)
    if node.pid in end.others:
        built.claim_descendants(resource, node.pid)
    task.waits = (resource,)


def awaited_file(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Any process may make a file: threads and children of this one and the other ranks are only the likely ones."""
    resource = Resource(
        Kind.FILE,
        ("file", end_of(edge).detail or task.key),
        complete=False,
        why="any process may make the file",
        strangers=True,
        basis=Basis.TEXT,
    )
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    built.claim_descendants(resource, node.pid)
    built.claim_ranks(resource)
    built.claim_ranks_at_work(resource)
    task.waits = (resource,)


# Connections


def connection(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The processes that hold the other end, and the bytes. A signal wakes an event loop too when a child ends."""
    end = end_of(edge)
    resource = Resource(
        Kind.SOCKET, task.key, complete=False, why=Elsewhere("the other end of a connection"), strangers=True
    )
    for pid in end.others:
        built.graph.claim(built.process(pid), resource, Role.HOLDS, Basis.KERNEL)
    if end.descriptor is not None and end.descriptor.socket is not None and node.pid in end.descriptor.socket.peer_pids:
        built.claim_other_threads(resource, node, Basis.ELIMINATION)  # the server is a thread of its own process
    if end.descriptor is None or end.descriptor.socket is None:  # the far end may be any process of the rank
        for member in built.job.of_rank(node.rank_pid or node.pid):
            if member.alive and member.pid != node.pid:
                built.graph.claim(built.process(member.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)
    if end.descriptor is not None:
        fd = end.descriptor.fd
        if passed(built.history, node.pid, fd, BYTES_SECONDS) > 0:
            built.claim_bytes(resource, ("bytes", node.pid, fd), "bytes arrive")
        elif sends(end) is not None and passed(built.history, node.pid, fd, BYTES_SECONDS, sent=True) >= ARRIVING_BYTES:
            built.claim_bytes(resource, ("sent", node.pid, fd), "the other end takes what is sent")
    if EVENT_LOOP in node.inner:
        built.claim_descendants(resource, node.pid)
    task.waits = (resource,)


# Keys of torch's store: any other rank can set them, and before the ranks have met so can any client


def store_key(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete once the ranks have met, if all are seen: then they alone set the keys. Before, its clients are not known."""
    met = built.job.covered and bool(built.calls.by_pid)
    why = "" if met else "any client of the store may set the key"
    # One for all that wait.
    resource = Resource(Kind.STORE, ("store",), complete=met, why=why, basis=Basis.STACK, strangers=not met)
    if built.graph.is_new(resource):
        for pid, start in built.starts.items():
            if built.edge_kind(start) != "rendezvous":
                built.graph.claim(built.rank(pid), resource, Role.PROVIDES, Basis.STACK)
            else:  # another thread of it may set the key, or what it has started
                built.claim_other_threads(resource, built.node(start), Basis.ELIMINATION)
                built.claim_descendants(resource, pid)
    task.waits = (resource,)


# Terminals, drivers, disks: nothing of the job releases these


# by kind of end: the resource, and whether the job is known to hold no releaser
OUTER = {
    "input": (Kind.TERMINAL, True),
    "driver": (Kind.DRIVER, True),
    "storage": (Kind.DISK, False),
    "uninterruptible": (Kind.DISK, False),
}


def outer(built: Builder, task: Task, kind: str) -> None:
    """No task provides it."""
    resource, complete = OUTER[kind]
    why = "" if complete else "a disk may answer"
    task.waits = (Resource(resource, task.key, complete=complete, why=why),)
