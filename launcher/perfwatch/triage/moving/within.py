"""Does a running thread turn in one ``while`` loop inside of one call of a step: a module's forward, the fetch of a batch?

Such a loop looks like training, for the modules and the loader that it is in are on every stack. What tells it apart: of many
samples none is of any other part of the step, or of the same function outside of that loop. A step that goes on shows them, unless
they take less than a hundredth of its time; then a line that the thread writes may still tell, and how long it took before.
"""

from dataclasses import dataclass
from itertools import pairwise

from perfwatch.triage.history import History, Seen, once
from perfwatch.triage.moving.motion import whole
from perfwatch.triage.shares.thresholds import BEYOND
from perfwatch.triage.words.code import asks_for_an_update, line_of, names
from perfwatch.triage.words.frames import is_named, is_user, own_frames, short_name, tags, tags_of
from perfwatch_probes import readings as r

FETCH = "fetch of a batch"
UPDATE = "optimizer step"
CALLS = {"forward": "forward pass", "fetch": FETCH, "backward": "backward pass", "optimizer": UPDATE}
GRADIENTS = frozenset({"backward", "grad"})  # an optimizer whose loop asks for them trains in there, turn by turn
UNREAD_SECONDS = 10.0  # until then a line may yet be read (measured: up to 7 s); later it was met too seldom for that
PAUSE_SECONDS = 10.0  # in which nobody looks; for the rest of a longer one it may have been anywhere
# What a loop may write with: of one that does, what its thread writes tells nothing.
WRITES = frozenset(
    "print write writelines flush log debug info warning error exception add_scalar send sendall put".split()
)
ENOUGH_SAMPLES = 30  # one after the other: a loop that takes 9 tenths of a step would have been left once


@dataclass(frozen=True)
class Within:
    """The loop, and for how long nothing else was seen."""

    frame: r.Frame  # the loop's own line, as it was seen last
    called: str  # what it is inside of, in words
    samples: int
    seconds: float  # for which it was observed there
    usual_seconds: float  # until when it may still come out, by how long it was in there before
    read: bool = True  # the source of every line that it was at; one that was not may lie outside of the loop


@dataclass
class Stay:
    """One time in the loop, from the first sample there to the last."""

    begin: float
    end: float
    seconds: float  # for which it was observed there
    samples: int = 0
    read: bool = True
    loop: r.Frame | None = None  # the newest line of it that is known to be in the loop


@once
def turns_within(history: History, pid: int, tid: int) -> Within | None:
    """The loop that a thread has not left for many samples; None where there is none, or its source was not read."""
    stacks = whole([seen for seen in history.series(r.Stack, pid, tid) if seen.reading.frames])
    if not stacks:
        return None
    frames = own_frames(stacks[-1].reading)
    known = [found for depth in range(len(frames)) if (found := _of_frame(history, stacks, frames, depth))]
    return max(known, key=lambda one: one.samples, default=None)


def _of_frame(history: History, stacks: list[Seen[r.Stack]], frames: tuple[r.Frame, ...], depth: int) -> Within | None:
    called = inside_of(history, frames[depth:])
    if called is None:
        return None
    sights = (_same_call(own_frames(seen.reading), frames[depth], frames[depth + 1 :]) for seen in reversed(stacks))
    # The newest that was read.
    line = next((line for one in sights if (line := line_of(history, one)) is not None), None)
    if line is None or "while" not in line.loops:
        return None
    loops = line.loops[line.loops.index("while") :]
    *earlier, now = stays(history, stacks, frames[depth:], loops) or [Stay(0.0, 0.0, 0.0)]
    usual = BEYOND * max((one.seconds for one in earlier), default=0.0)
    seconds = now.seconds + min(history.at - now.end, PAUSE_SECONDS)
    if now.loop is None or now.samples < ENOUGH_SAMPLES or seconds < usual:
        return None
    return Within(now.loop, called, now.samples, seconds, usual, now.read)


def inside_of(history: History, frames: tuple[r.Frame, ...]) -> str | None:
    """What the innermost call of a step is that the first of these frames, innermost first, is a part of.

    An optimizer that the program wrote itself is known by the line that calls its ``step``, if that does not train by itself.
    """
    loop = line_of(history, frames[0])
    for frame, caller in pairwise(frames):
        if found := tags_of(caller.function, caller.file) & CALLS.keys():
            return CALLS[min(found)]
        line = line_of(history, caller) if short_name(frame.function) == "step" else None
        if line is not None and asks_for_an_update(line.calls):
            trains = loop is not None and names(loop.loop_calls) & GRADIENTS
            return None if trains else UPDATE
    return None


def _turns(history: History, frame: r.Frame, loops: tuple[str, ...]) -> bool | None:
    """True if a line stands in that loop, or in one within it: the same kinds of loops are around. None if it was not read."""
    line = line_of(history, frame) if is_named(frame) else None
    return None if line is None else line.loops[-len(loops) :] == loops and not line.hands_out


def stays(
    history: History, stacks: list[Seen[r.Stack]], frames: tuple[r.Frame, ...], loops: tuple[str, ...]
) -> list[Stay]:
    """The times in that call and in the loop, oldest first; the newest stack is of the last one. None where it is of no such time.

    frames: the one that stands in the loop, and those around it. loops: the kinds of the loop and of those around it.
    """
    frame, outer = frames[0], frames[1:]
    found: list[Stay] = []
    wrote = _wrote(history, stacks[-1].reading, frame)
    inside = False
    for seen in stacks:
        here = _same_call(own_frames(seen.reading), frame, outer)
        turns = False if here is None else _turns(history, here, loops)
        if turns is False or (turns is None and history.at - seen.at > UNREAD_SECONDS):
            inside = False
            continue
        if not inside or any(found[-1].end < at <= seen.at for at in wrote):
            begin = seen.at - seen.reading.span_seconds
            found.append(Stay(begin, begin, 0.0))
        stay, inside = found[-1], True
        stay.seconds += min(seen.at - stay.end, PAUSE_SECONDS)
        stay.end, stay.samples = seen.at, stay.samples + seen.reading.samples
        stay.read, stay.loop = stay.read and turns is not None, here if turns else stay.loop
    return found if inside else []


def _wrote(history: History, stack: r.Stack, frame: r.Frame) -> list[float]:
    """When the thread was seen to have written something that the loop does not write: it was elsewhere for that."""
    source = line_of(history, frame)
    if source is None or names(source.loop_calls) & WRITES:
        return []
    looks = [seen for seen in history.series(r.Thread, stack.pid, stack.tid) if seen.reading.write_calls is not None]
    return [b.at for a, b in pairwise(looks) if (b.reading.write_calls or 0) > (a.reading.write_calls or 0)]


def _same_call(frames: tuple[r.Frame, ...], frame: r.Frame, outer: tuple[r.Frame, ...]) -> r.Frame | None:
    """Where a stack is in that function, called from there; None where it is elsewhere."""
    depth = len(frames) - len(outer) - 1
    if depth < 0 or frames[depth + 1 :] != outer:
        return None
    here = frames[depth]
    return here if (here.function, here.file) == (frame.function, frame.file) else None


PASSES = frozenset({"forward", "backward", "optimizer", "scaler"})


@dataclass(frozen=True)
class Anew:
    """A ``while`` loop that starts a loader again and again, and is given no batch."""

    frame: r.Frame  # where it starts the loader
    times: int
    seconds: float  # since the last pass, or since somebody watched
    by_workers: bool  # starting them takes most of the time: a brief step between two epochs may be missed


@once
def begins_anew(history: History, pid: int, tid: int) -> Anew | None:
    """The loop of a thread that has come to the end of its loader, and started it again, without any batch in between.

    A filter that rejects every sample looks like a slow fetch: what tells it apart is that the data set ends.
    """
    stacks = whole([seen for seen in history.series(r.Stack, pid, tid) if seen.reading.frames])
    at = max((n for n, one in enumerate(stacks) if tags(one.reading) & PASSES), default=-1)
    since = stacks[at + 1 :]
    fetched, times, starts = False, 0, None
    for one in since:
        found = tags(one.reading)
        if "loader_start" in found and fetched:
            times, fetched, starts = times + 1, False, _outside_of_loader(one.reading)
        elif found & {"fetch", "loader_wait"}:
            fetched = True
    line = line_of(history, starts)
    if starts is None or line is None or line.loops[:2] != ("for", "while"):
        return None
    began = stacks[at].at if at >= 0 else since[0].at - since[0].reading.span_seconds
    by_workers = any("loader_wait" in tags(one.reading) for one in since)
    wrote = [] if by_workers else _wrote(history, since[-1].reading, starts)  # to start a process is to write
    return Anew(starts, times, history.at - max([began, *wrote]), by_workers)


def _outside_of_loader(stack: r.Stack) -> r.Frame | None:
    """The program's own line that asks a loader, or starts it."""
    frames = own_frames(stack)
    depth = max((n for n, frame in enumerate(frames) if "loader" in tags_of(frame.function, frame.file)), default=-1)
    return next((frame for frame in frames[depth + 1 :] if is_user(frame)), None)
