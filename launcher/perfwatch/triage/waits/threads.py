"""Waits inside one process: locks, conditions, joins and the GIL, and which of its other threads may end them."""

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import GIL_SWITCHES_PER_SECOND, WINDOW_SECONDS, python_threads
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.locks import A_BARRIER, A_LOCK, MAY, ROOM, awaited, holds, may_own, owners
from perfwatch.triage.waits.native_waits import in_native_code, may_serve, nobody_left, reduces
from perfwatch.triage.waits.node import (
    NATIVE_WAIT,
    End,
    Found,
    Node,
    beside,
    has_timeout,
    in_event_loop,
    led_to,
    node_of,
    silence,
    waits_forever,
)
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.code import line_of, lock_taken, names
from perfwatch.triage.words.frames import any_tag, inner_frames, package_of, tags_of
from perfwatch_probes import readings as r

HEARTBEATS_PER_SECOND = 0.5  # a heartbeat wakes at least so often: twice within one look of a few seconds
LONGEST_BEAT_SECONDS = 2.0 / HEARTBEATS_PER_SECOND
JUST_NOW_SECONDS = 2.0
# All that a heartbeat calls; a loop that calls anything else may hand something over.
HEARTBEAT_CALLS = frozenset(
    "sleep wait is_set print write flush open close time monotonic perf_counter strftime now format str int round len"
    " info debug log warning getpid".split()
)
HAS_THREADS = "monitor"  # tag of libraries whose threads are servants of the program's
ASKS = frozenset({"thread_wait", "thread_join", "futures_wait", "queue_get"})
GIL_WAIT_SECONDS = 0.02  # CPython re-asks every 5 ms (sys.getswitchinterval); remaining time measured 1-2 ms
OWNER_LOOKS = 3  # the newest ones: on a crowded machine they are many seconds apart
OWNER_SECONDS = 15.0  # only dumps tell the owner of the GIL, and they come every few seconds
OTHERS_MOVE = "other threads move"
HELD_BY = ", held by thread "
CALLBACK = "callback"  # of a collective: how far that has come is up to the other ranks
ELSEWHERE_HELD = "another process may hold it"
OUTSIDE_HELD = "a process outside of the job may hold it"  # it is shared, and nobody of the job has it besides
LONG_SLEEP_SECONDS = 60.0  # a thread that sleeps longer than this has not returned to release a lock in time
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
    return wait.remaining_seconds is not None and wait.remaining_seconds <= GIL_WAIT_SECONDS


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
    unsure = False
    if what == A_LOCK and not native:
        others, unsure = may_own(history, node, others)
    ends_itself = has_timeout(node) and not native  # and looks again: whoever joins it is no way on
    leading = [one for one in others if _leads_on(one) and (not native or may_serve(node, one))]
    leading = [one for one in leading if not (ends_itself and "thread_join" in one.inner)]
    owned = lock_taken(line_of(history, node.frame)) if what == A_LOCK and not native else ""
    holders = [one for one in leading if owned and holds(history, one, owned)]
    if holders:
        return f'the lock "{owned}"{HELD_BY}{holders[0].name or holders[0].tid}', tuple(leading), None
    return led_to(leading) if leading else _ends_here(history, job, node, others, unsure=unsure)


def _ends_here(
    history: History, job: Job, node: Node, others: list[Node], *, unsure: bool
) -> tuple[str, tuple[Node, ...], End]:
    """What a thread waits for that no other thread of its process leads on from.

    Args:
        others: the threads of its process that may release it.
        unsure: True if it is not known which of them holds the lock.
    """
    native = in_native_code(history, node)
    if node.motion.frozen is False:
        return "something that unblocks it now and then", (), End("other", node)
    if node.wait is not None and node.wait.kind == "poll" and not node.wait.forever:
        return "an event", (), End("other", node)
    locked = tuple(other.tid for other in others if waits_forever(other))
    if native and not nobody_left(history, node):
        joined = node.wait.joined_tid if node.wait is not None else None
        what = "something in native code" if joined is None else f"the end of its thread {joined}, in native code"
        return what, (), End(NATIVE_WAIT, node, others=locked)
    if node.wait is not None and node.wait.shared and (relatives := _who_may(history, job, node)):
        mains = [node_of(history, job, pid) for pid in relatives]
        mains = [one for one in mains if not any_tag(one.inner, *LEADING_TAGS)]  # those wait for others themselves
        moving = tuple(one.pid for one in mains if one.wait is None or not one.wait.forever)
        detail = OTHERS_MOVE if moving else ELSEWHERE_HELD
        who = ", ".join(map(str, (moving or relatives)[:3]))
        what = awaited(node)
        told = f"{what if what in MAY else A_LOCK} between processes, which pid {who} {MAY.get(what, 'may hold')}"
        return told, (), End("lock", node, others=moving or relatives, detail=detail)
    acts = any(may_act(history, other) for other in others if not (waits_forever(other) and idle(other)))
    if unsure or acts or has_timeout(node) or node.motion.samples < 2:
        told = f", while {OTHERS_MOVE}" if acts else ""
        return awaited(node) + told, (), End("lock", node, others=locked, detail=OTHERS_MOVE)
    if node.wait is not None and node.wait.shared and not locked:
        return f"{awaited(node)} between processes", (), End("lock", node, detail=OUTSIDE_HELD)
    if reduces(history, node.pid):
        told = f"{awaited(node)}, which a collective that is under way may bring"
        return told, (), End("collective", node, others=locked, detail=CALLBACK)
    what = awaited(node)
    if what != A_LOCK:
        why = "and no running thread will come" if what == A_BARRIER else "and no running thread can end this wait"
        return f"{what}, {why}", (), End("lock", node, others=locked)
    who = (
        f"held by a thread that is blocked itself ({', '.join(map(str, locked))})"
        if locked
        else "that no running thread can release"
    )
    return f"{what} {who}", (), End("lock", node, others=locked)


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
    return wait.kind != "sleep" or (wait.remaining_seconds or 0.0) > LONG_SLEEP_SECONDS


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
