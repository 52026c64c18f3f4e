"""The loop around what a thread does: how it ends, and whether a turn of it hands something to other tasks."""

from collections import Counter
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.graph.model import Ends
from perfwatch.triage.graph.thresholds import (
    GENERATOR_SHARE,
    GIL_SAMPLES,
    LOOP_SECONDS,
    ONE_CALL_SAMPLES,
    ONE_CALL_SHARE,
    STAYS_SHARE,
)
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import is_plain, line_of, matches_expressions, names
from perfwatch.triage.words.frames import is_standard, own_frames, tags_of, user_frame, user_frames
from perfwatch_probes import readings as r

TRAINS = frozenset(("backward", "optimizer", "forward", "loader", "scaler", "collective"))
GIVES = r.GIVING | frozenset(
    "send send_bytes sendall set_result set_exception write append appendleft clear submit result recv recv_bytes".split()
)


# Calls in the condition of a loop that only look; any other one may be a step of what the loop computes.
LOOKS = r.FILE_TESTS | frozenset(
    "is_set is_alive is_active empty full qsize done ready running locked poll exitcode item any all len sleep time monotonic"
    " perf_counter".split()
)


@dataclass(frozen=True)
class Loop:
    """The innermost loop that a thread stays in."""

    ends: Ends = Ends.UNREAD
    gives: bool = True  # a turn hands something to other tasks, or may
    tests_only: bool = False  # a turn does nothing but test the condition
    frame: r.Frame | None = None
    lines: int = 0  # of the loop, at which the thread was seen


def loop_of(history: History, node: Node) -> Loop:
    """The innermost loop in the innermost frame that stays over the last samples."""
    return history.once(("loop of", node.pid, node.tid), lambda: _loop_of(history, node))


def _loop_of(history: History, node: Node) -> Loop:
    if (call := _one_call(history, node)) is not None:
        return call
    for lines in reversed(_staying(history, node)):
        known = [(one, frame) for frame in lines if (one := line_of(history, frame)) is not None and one.loops]
        if not known:
            continue
        line, frame = max(known, key=lambda one: len(one[0].loops))
        if line.loops[0] == "for" or line.nears_its_end or line.fills:
            ends = Ends.COUNTS
        else:
            ends = Ends.NEVER if line.endless else Ends.CONDITION
            if line.only_tests and names(line.loop_calls) - LOOKS:
                ends = Ends.UNREAD
        gives = bool(names(line.loop_calls) & GIVES or names(line.gives)) or line.calls_unnamed or line.hands_out
        return Loop(ends, gives, line.only_tests, frame, len(lines))
    return Loop()


def _one_call(history: History, node: Node) -> Loop | None:
    """All of many samples show one stack: of a regular expression, which may not return, or of other C, which computes."""
    seen = [one.reading for one in stacks_of(history, node.pid, node.tid, LOOP_SECONDS) if one.reading.frames]
    total = sum(one.samples for one in seen)
    if total < ONE_CALL_SAMPLES or node.stack is None:
        return None
    alike = sum(one.samples for one in seen if one.frames == node.stack.frames)
    inner = node.stack.frames[0]
    line = line_of(history, inner)
    if line is not None and line.loops and set(line.loop_calls) <= set(line.calls):
        return None  # nothing else is in that loop that could be seen: it may turn
    if alike < ONE_CALL_SHARE * total:
        return None
    owned = [one.owns_gil for one in seen if one.owns_gil is not None]
    keeps_gil = len(owned) >= GIL_SAMPLES and all(owned) and (line is None or not line.loops)
    known = [one for one in (line, line_of(history, user_frame(node.stack))) if one is not None]
    if not any(matches_expressions(one.calls) for one in known) and (known or not keeps_gil):
        plain = is_standard(inner) or (line is not None and is_plain(history, inner))
        return Loop(Ends.UNREAD, False, False, inner, 1) if plain or keeps_gil else None
    return Loop(Ends.ONE_CALL, False, False, inner, 1)


def _staying(history: History, node: Node) -> list[list[r.Frame]]:
    """The program's own frames that stay, outermost first, with the lines that each was seen at."""
    stacks = [
        (user_frames(seen.reading)[::-1], seen.reading.samples)
        for seen in stacks_of(history, node.pid, node.tid, LOOP_SECONDS)
    ]
    total = sum(weight for _, weight in stacks)
    found: list[list[r.Frame]] = []
    while total:
        depth = len(found)
        at: Counter[tuple[str, str]] = Counter()
        for frames, weight in stacks:
            if len(frames) > depth:
                at[frames[depth].function, frames[depth].file] += weight
        if not at:
            break
        name, weight = at.most_common(1)[0]
        asks = sum(n for frames, n in stacks if depth and len(frames) == depth and _asks(history, frames[-1], name[0]))
        if weight + asks < STAYS_SHARE * total or weight < GENERATOR_SHARE * total:
            break
        total -= asks
        stacks = [one for one in stacks if len(one[0]) > depth and (one[0][depth].function, one[0][depth].file) == name]
        found.append(list(dict.fromkeys(frames[depth] for frames, _ in stacks)))
    return found


def _asks(history: History, frame: r.Frame, function: str) -> bool:
    """True if a line is the head of a ``for`` loop over a generator, which the loop asks for its next item."""
    line = line_of(history, frame)
    return (
        line is not None and line.text.lstrip().startswith("for ") and function.rpartition(".")[2] in names(line.calls)
    )


def seconds_in_loop(case: Case, node: Node, loop: Loop) -> float:
    """Seconds since a running thread was last seen outside of the loop, or at training work that the loop called."""
    series = [one for one in case.history.series(r.Stack, node.pid, node.tid) if one.reading.frames]
    if not series or loop.frame is None:
        return 0.0
    name = (loop.frame.function, loop.frame.file)
    for one in reversed(series):
        frames = own_frames(one.reading)
        at = next((n for n, frame in enumerate(frames) if (frame.function, frame.file) == name), None)
        if at is None or any(TRAINS & tags_of(frame.function, frame.file) for frame in frames[:at]):
            return case.at - one.at
    return case.at - (series[0].at - series[0].reading.span_seconds)
