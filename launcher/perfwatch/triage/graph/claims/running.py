"""A thread that runs is LIVE, unless the loop that it runs in gives nothing: then it waits for the end of that loop."""

from perfwatch.triage.cards.gpu import unseen
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.claims.gpu import idle_card_seconds
from perfwatch.triage.graph.model import Basis, Ends, Fate, Kind, Prospect, Resource, Task, Unread
from perfwatch.triage.graph.thresholds import FRESH_SECONDS, ONE_CALL_TIMES
from perfwatch.triage.moving.loops import Loop, loop_of
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node
from perfwatch_probes.readings import Stack


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
    if in_sync(built.history, node.stack) and idle_card_seconds(built.case, node.pid) is not None:
        why = "a host function may hold up its stream"
        resource = Resource(Kind.GPU, ("stream", node.pid), complete=False, why=why, basis=Basis.STACK)
    elif built.case.progress[node.pid].kind == "still" or unseen(built.history, node.pid):
        why = Unread("what it runs in native code")
        resource = Resource(Kind.NATIVE, task.key, complete=False, why=why, basis=Basis.ELIMINATION)
    else:
        return None
    built.claim_other_threads(resource, node, Basis.ELIMINATION)
    return resource
