"""Threads that rest: which of them may yet do something for others when they wake, and which only look up now and then."""

from perfwatch.triage.history import History
from perfwatch.triage.waits.node import Node, in_event_loop
from perfwatch.triage.waits.polling import source_of
from perfwatch.triage.words.code import names

HEARTBEATS_PER_SECOND = 0.5  # a heartbeat wakes at least so often: twice within one look of a few seconds
LONGEST_BEAT_SECONDS = 2.0 / HEARTBEATS_PER_SECOND
JUST_NOW_SECONDS = 2.0
# All that a heartbeat calls; a loop that calls anything else may hand something over.
HEARTBEAT_CALLS = frozenset(
    "sleep wait is_set print write flush open close time monotonic perf_counter strftime now format str int round len"
    " info debug log warning getpid".split()
)


def has_timeout(node: Node) -> bool:
    """Blocked in a futex with a timeout."""
    return node.wait is not None and node.wait.kind == "futex" and not node.wait.forever


def waits_forever(node: Node) -> bool:
    """Blocked in a futex without a timeout."""
    return node.wait is not None and node.wait.kind == "futex" and node.wait.forever


def ticks(node: Node) -> bool:
    """A heartbeat: it rests for a moment, again and again, and was seen to come and go."""
    wait = node.wait
    if wait is None or wait.kind not in ("sleep", "poll", "futex") or wait.forever:
        return False
    if (wait.remaining_seconds or 0.0) > LONGEST_BEAT_SECONDS:
        return False  # it has just come and gone, and rests for long now: before another try, say
    return (node.motion.switches_per_second or 0.0) >= HEARTBEATS_PER_SECOND


def hands_over(history: History, node: Node) -> bool:
    """Whether the loop that a thread turns in may give something to others now and then, as any coroutine of an event loop may."""
    if in_event_loop(node):
        return True
    source = source_of(history, node)
    return source is None or not names(source.loop_calls) <= HEARTBEAT_CALLS


def may_act(history: History, node: Node) -> bool:
    """Whether a thread runs, did so a moment ago in the midst of its work, or may wake by itself: no heartbeat that hands nothing over."""
    if waits_forever(node):
        ran = node.motion.ran_ago_seconds
        return ran is not None and ran < JUST_NOW_SECONDS and "queue_get" not in node.inner
    return not ticks(node) or hands_over(history, node)


def parks(history: History, node: Node) -> bool:
    """Whether a thread only keeps its process alive: it sleeps in a loop without end that does nothing else."""
    source = source_of(history, node)
    sleeps = node.wait is not None and node.wait.kind == "sleep"
    return sleeps and source is not None and bool(source.loops) and not hands_over(history, node)
