"""Threads that wait for no resource that is known: they run, sleep, poll, or wait for something that cannot be seen.

One that runs is LIVE, unless the loop that it runs in gives nothing: then it waits for the end of that loop.
"""

from perfwatch.triage.cards.gpu import idle_card_seconds, unseen
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import NOT_SAMPLED, Builder, end_of
from perfwatch.triage.graph.model import Activity, Acts, Basis, Ends, Fate, Kind, Prospect, Resource, Role, Task, Unread
from perfwatch.triage.graph.thresholds import FRESH_SECONDS, ONE_CALL_TIMES, POLLING_SECONDS
from perfwatch.triage.moving.loops import Loop, loop_of
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES, LATE_SECONDS, MEANT_SECONDS, SIGN_OF_LIFE
from perfwatch.triage.moving.work import work_of
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.edges import SIGNAL_WAITS, Edge
from perfwatch.triage.waits.node import EVENT_LOOP, Node
from perfwatch.triage.words.code import next_try_seconds
from perfwatch_probes.readings import Stack

# Running


def running(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """The training thread makes no step while it is in a loop; any other thread hands nothing over if its loop gives nothing."""
    loop = built.loop(task.key, loop_of(built.history, node))
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
    why = Unread("what it runs was hardly sampled") if hardly else "the loop may end"
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

    A loop without a known end is given the hang timeout, a call that may not return half of it, and a loop that counts and moves no data
    five times as long.
    """
    waited = built.waited_seconds(node.pid)
    if loop.ends is Ends.ONE_CALL:
        waited = max(waited, _seconds_in_call(built, node))
        return waited >= ONE_CALL_TIMES * built.hang_timeout
    if _may_turn_for_ever(loop):
        return waited >= built.hang_timeout
    moves_data = seen.work.data >= ARRIVING_BYTES  # of which there is an end
    return loop.ends is Ends.COUNTS and not moves_data and built.nothing_came_of(node.pid)


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
    return built.case.at - began


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
    """A sleep for hours is settled; one that ends soon is due; a thread that polls waits for whatever it tests."""
    left = None if seen.until is None else seen.until - built.case.at
    if left is not None and left > MEANT_SECONDS:
        task.fate = Fate(Prospect.SETTLED, why="it sleeps for hours")
        return
    loop = loop_of(built.history, node)
    if left is None or (seen.state is Activity.POLLS and not _leads_on(loop, node)):
        built.loop(task.key, loop)
        signalled = node.wait is not None and node.wait.call in SIGNAL_WAITS
        why = Acts("a process that sends the signal") if signalled else "it polls"
        resource = Resource(Kind.FLAG, task.key, complete=False, why=why, basis=Basis.TEXT)
        built.claim_other_threads(resource, node, Basis.ELIMINATION)
        built.claim_descendants(resource, node.pid)
        built.claim_ranks(resource)
        task.waits = (resource,)
        return
    rests = left + (node.motion.ran_ago_seconds or 0.0)
    next_try = next_try_seconds(built.case.history, node.thread, node.stack)
    again = next_try is not None and rests < built.case.patience_seconds
    task.fate = Fate(Prospect.DUE, until=seen.until or built.case.at, works=0.0 if again else 1.0, why="it sleeps")


def _leads_on(loop: Loop, node: Node) -> bool:
    """True if a thread that sleeps again and again gets somewhere: it counts its sleeps, or hands something over after each."""
    if node.wait is None or node.thread is None:
        return False
    total = (node.wait.remaining_seconds or 0.0) + (node.thread.ran_ago_seconds or 0.0)
    counts = total >= POLLING_SECONDS and loop.ends is Ends.COUNTS
    return counts or (loop.gives and loop.ends in (Ends.NEVER, Ends.COUNTS))


def own_deadline(built: Builder, task: Task, node: Node, seen: ThreadActivity, alone: bool) -> None:
    """A wait with a deadline of its own ends then, in its first round; in an event loop a timer may fire in any round.

    ``alone``: no other process takes part, so the deadline is what the wait is for.
    """
    wait = node.wait
    if task.fate is not None or wait is None or wait.kind == "sleep" or seen.until is None:
        return
    in_loop = EVENT_LOOP in node.inner and wait.remaining_seconds is not None
    if not in_loop and seen.state is not Activity.SLEEPS:
        return
    silent = seen.silence.seconds if seen.silence is not None else 0.0
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
