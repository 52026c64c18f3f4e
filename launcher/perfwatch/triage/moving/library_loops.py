"""A loop of a library that a running thread turns in, below the one line of the program that called it.

It looks like one long native call, for the program's own line never changes. But the library's function was seen at several of
its lines, around one that stands in a ``while``: a search or a sampling that may never find what it looks for.
"""

from perfwatch.triage.history import History
from perfwatch.triage.moving.loops import LOOP_SECONDS, STAYS_SHARE
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import own_frames, user_frame
from perfwatch_probes import readings as r

FEW_LINES = 3  # of the loop: a call that returns was seen at each of them


def library_loop(history: History, node: Node) -> r.Frame | None:
    """A line of it; None where there is none, or none of its lines was read."""
    return history.once(("library loop", node.pid, node.tid), lambda: _library_loop(history, node))


def _library_loop(history: History, node: Node) -> r.Frame | None:
    sights = [
        (_called(seen.reading), seen.reading.samples) for seen in stacks_of(history, node.pid, node.tid, LOOP_SECONDS)
    ]
    called = [(frame, samples) for frame, samples in sights if frame is not None]
    if not called:
        return None
    newest = called[-1][0]
    alike = [
        (frame, samples) for frame, samples in called if (frame.function, frame.file) == (newest.function, newest.file)
    ]
    if sum(samples for _, samples in alike) < STAYS_SHARE * sum(samples for _, samples in sights):
        return None
    lines = {frame.line: frame for frame, _ in alike}
    turning = [one for one in lines.values() if (source := line_of(history, one)) and "while" in source.loops]
    return turning[-1] if turning and len(lines) >= FEW_LINES else None


def _called(stack: r.Stack) -> r.Frame | None:
    """The library's function that the program's own line called: the outermost below it."""
    own, frames = user_frame(stack), own_frames(stack)
    depth = frames.index(own) if own in frames else 0
    return frames[depth - 1] if depth > 0 else None
