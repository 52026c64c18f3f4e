"""Does a running thread turn in one ``while`` loop inside of one call of a step: a module's forward, the fetch of a batch?

Such a loop looks like training, for the modules and the loader that it is in are on every stack. What tells it apart: of many
samples none is of any other part of the step, or of the same function outside of that loop. A step that goes on shows them.
"""

from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.code import line_of
from perfwatch.triage.frames import is_named, own_frames, tags_of
from perfwatch.triage.history import History, Seen

CALLS = {
    "forward": "forward pass",
    "fetch": "fetch of a batch",
    "backward": "backward pass",
    "optimizer": "optimizer step",
}
TIMES_BEFORE = 3.0  # the longest time that it was in there before and came out
ENOUGH_SAMPLES = 30  # one after the other: a loop that takes 9 tenths of a step would have been left once


@dataclass(frozen=True)
class Within:
    """The loop, and since when nothing else was seen."""

    frame: r.Frame  # the loop's own line, as it was seen last
    called: str  # what it is inside of, in words
    samples: int
    since: float  # of the session, seconds
    usual_seconds: float  # until when it may still come out, by how long it was in there before

    def seconds(self, at: float) -> float:
        """For how long so far."""
        return at - self.since


def turns_within(history: History, pid: int, tid: int) -> Within | None:
    """The loop that a thread has not left for many samples; None where there is none, or its source was not read."""
    return history.once(("turns within", pid, tid), lambda: _turns_within(history, pid, tid))


def _turns_within(history: History, pid: int, tid: int) -> Within | None:
    stacks = [seen for seen in history.series(r.Stack, pid, tid) if seen.reading.frames]
    if not stacks:
        return None
    frames = own_frames(stacks[-1].reading)
    known = [found for depth in range(len(frames)) if (found := _of_frame(history, stacks, frames, depth))]
    return max(known, key=lambda one: one.samples, default=None)


def _of_frame(history: History, stacks: list[Seen[r.Stack]], frames: tuple[r.Frame, ...], depth: int) -> Within | None:
    called = _inside(frames[depth + 1 :])
    if called is None or not _turns(history, frames[depth]):
        return None
    runs = _runs(history, stacks, frames[depth], frames[depth + 1 :])
    since, end, samples = runs[-1]
    before = max((end - begin for begin, end, _ in runs[:-1]), default=0.0)
    if samples < ENOUGH_SAMPLES or end - since < TIMES_BEFORE * before:
        return None
    return Within(frames[depth], called, samples, since, TIMES_BEFORE * before)


def _inside(outer: tuple[r.Frame, ...]) -> str | None:
    """What the innermost call of a step is that these frames are, innermost first."""
    for frame in outer:
        if found := tags_of(frame.function, frame.file) & CALLS.keys():
            return CALLS[min(found)]
    return None


def _turns(history: History, frame: r.Frame) -> bool:
    source = line_of(history, frame) if is_named(frame) else None
    return source is not None and "while" in source.loops


def _runs(
    history: History, stacks: list[Seen[r.Stack]], frame: r.Frame, outer: tuple[r.Frame, ...]
) -> list[tuple[float, float, int]]:
    """The unbroken times (begin, end, samples) in that call and in the loop, oldest first; the last one lasts."""
    runs: list[tuple[float, float, int]] = []
    begin, end, samples = 0.0, 0.0, 0
    for seen in stacks:
        if _is_in(history, own_frames(seen.reading), frame, outer):
            begin = begin if samples else seen.at - seen.reading.span_seconds
            end, samples = seen.at, samples + seen.reading.samples
        elif samples:
            runs.append((begin, end, samples))
            samples = 0
    return [*runs, (begin, end, samples)]


def _is_in(history: History, frames: tuple[r.Frame, ...], frame: r.Frame, outer: tuple[r.Frame, ...]) -> bool:
    depth = len(frames) - len(outer) - 1
    if depth < 0 or frames[depth + 1 :] != outer:
        return False
    here = frames[depth]
    return (here.function, here.file) == (frame.function, frame.file) and (here == frame or _turns(history, here))
