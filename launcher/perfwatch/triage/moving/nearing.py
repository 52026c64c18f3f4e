"""Does a ``while`` loop of a training thread come nearer to its end? By its text it need not; but turns that bring it on are seen.

Whoever looks for what is never found is never met in the branch that takes one more, nor outside of the function again. Where a
store is filled, memory grows.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from perfwatch.triage.history import History, Seen
from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import user_frames
from perfwatch_probes import readings as r

SIGN_SECONDS = (
    120.0  # a branch that takes a hundredth of the time shows in one of 500 samples, half a minute of them, or in none
)
TIMES_OUT = 2  # seen to have come out: once may be a torn stack
WHOLE_SHARE = 0.5  # of the samples; measured: a nonblocking sample within a generator tears in one of three
GROWING_SECONDS, PARTS = 20.0, 4  # memory that grows in each of these has grown for the loop, and not for one call
GROWN_BYTES = 64 * 1024  # in each part; measured on a replay memory in plain Python: 3 MB a second


def comes_nearer(history: History, node: Node, lines: list[r.Frame]) -> bool:
    """Whether, since it last trained, a thread was met where a ``while`` loop is brought on; ``lines`` of its function, as seen."""
    known = [source for line in lines if (source := line_of(history, line)) is not None]
    if any(source.fills for source in known) and _grows(history, node.pid):
        return True
    found = (line_of(history, one) for stack in _lately(history, node) for one in _within(stack, lines[0]))
    return any(source is not None and source.nears_its_end for source in found)


def comes_out(history: History, node: Node, frame: r.Frame) -> bool:
    """Whether, since it last trained, a thread has come out of the function of this frame again and again."""
    inside = [bool(_within(stack, frame)) for stack in _lately(history, node)]
    return (
        sum(now and not before for now, before in pairwise(inside)) >= TIMES_OUT
    )  # newest first: it was out, and is in again


def whole(stacks: list[Seen[r.Stack]]) -> list[Seen[r.Stack]]:
    """Those that reach down to where the thread began: a torn one may end anywhere. All of them, where most begin differently."""
    begun = Counter[tuple[str, str]]()
    for one in stacks:
        begun[_outermost(one.reading)] += one.reading.samples
    first, samples = begun.most_common(1)[0] if begun else (("", ""), 0)
    if samples < WHOLE_SHARE * sum(begun.values()):
        return stacks
    return [one for one in stacks if _outermost(one.reading) == first]


def _outermost(stack: r.Stack) -> tuple[str, str]:
    return (stack.frames[-1].function, stack.frames[-1].file) if stack.frames else ("", "")


def _lately(history: History, node: Node) -> Iterator[r.Stack]:
    """What the thread was seen in since it last trained, newest first."""
    series = history.series(r.Stack, node.pid, node.tid, seconds=SIGN_SECONDS)
    trained = max((at for at, one in enumerate(series) if at_training(one.reading)), default=-1)
    yield from (one.reading for one in reversed(whole(series[trained + 1 :])) if one.reading.frames)


def _within(stack: r.Stack, frame: r.Frame) -> list[r.Frame]:
    """Where a stack stands in that function."""
    return [one for one in user_frames(stack) if (one.function, one.file) == (frame.function, frame.file)]


def _grows(history: History, pid: int) -> bool:
    """Whether the memory of a process grows all the while, and not at one moment."""
    seen = history.series(r.ProcessUsage, pid, seconds=GROWING_SECONDS)
    if len(seen) <= PARTS or seen[-1].at - seen[0].at < GROWING_SECONDS / 2:
        return False
    sizes = [seen[(len(seen) - 1) * part // PARTS].reading.resident_bytes for part in range(PARTS + 1)]
    return all(later - earlier >= GROWN_BYTES for earlier, later in pairwise(sizes))
