"""The loop that a thread is in: how it ends, and whether a turn of it hands something to other tasks.

Over many samples the outer frames of a thread stay the same and the inner ones change. The innermost frame that stays has the loop,
or one of its callers does. By its text a ``while`` loop may never end, but samples can show that it comes nearer to its end: the
thread is met in the branch that takes one more, the memory of the process grows, or the function returns again and again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from perfwatch.triage.graph.model import Ends
from perfwatch.triage.history import PARTS, History, grows, once
from perfwatch.triage.moving.motion import gil_passed_at, stacks_of, whole
from perfwatch.triage.moving.thresholds import LOOP_SECONDS, WORKS_BYTES
from perfwatch.triage.moving.work import chars_of
from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.shares.thresholds import FEW_TIMES, MOSTLY, NEARLY_ALL, TWICE
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import TELLS, is_plain, line_of, matches_expressions, names
from perfwatch.triage.words.frames import is_user, own_frames, user_frame, user_frames
from perfwatch_probes import readings as r

ONE_CALL_SAMPLES, ONE_CALL_SHARE = 60, 0.95
PROGRESS_SECONDS = (
    120.0  # a branch that takes a hundredth of the time shows in one of 500 samples, half a minute of them, or in none
)
GROWING_SECONDS = 20.0  # memory that grows all the while has grown for the loop, and not for one call
GROWN_BYTES = 256 * 1024  # by so much; measured on a replay memory in plain Python: 3 MB a second

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
    """The innermost loop that a thread stays in. UNREAD without a frame if none is known."""

    ends: Ends = Ends.UNREAD
    kinds: tuple[str, ...] = ()  # of the loops around it in its function, innermost first: "for" or "while"
    gives: bool = True  # a turn hands something to other tasks, or may
    tests_only: bool = False  # a turn does nothing but test the condition
    frame: r.Frame | None = None
    lines: int = 0  # of the loop, at which the thread was seen
    expression: bool = False  # ONE_CALL: of a regular expression, which holds the GIL

    @property
    def may_turn_for_ever(self) -> bool:
        """True if it, or a loop around it, turns until a condition is true."""
        return "while" in self.kinds

    @property
    def idles(self) -> bool:
        """True if no turn of it ends it or gives anything to another task."""
        return self.ends is Ends.NEVER and self.tests_only and not self.gives

    @property
    def library(self) -> r.Frame | None:
        """Its frame if the loop is in a function of a library that the program called: a search that may find nothing."""
        return None if self.frame is None or is_user(self.frame) else self.frame

    @property
    def counts(self) -> bool:
        """True if it and all loops around it come to their end."""
        return bool(self.kinds) and not self.may_turn_for_ever


@once
def loop_of(history: History, node: Node) -> Loop:
    """The innermost loop in the innermost frame that stays over the last samples."""
    loop = _idle(history, node) or _by_text(history, node)
    return _in_one_call(history, node, loop) or loop


def _idle(history: History, node: Node) -> Loop | None:
    """The loop without an end around a line of the program, if it does nothing but look, tell and sleep: no turn leaves it."""
    frame = user_frame(node.stack) if node.stack is not None else None
    line = line_of(history, frame)
    if frame is None or line is None or not line.endless or line.loops != ("while",) or line.calls_unnamed:
        return None
    idles = (
        "sleep" in names(line.loop_calls)
        and names(line.loop_calls) <= LOOKS | TELLS
        and not (line.gives or line.stores)
    )
    return Loop(Ends.NEVER, line.loops, False, True, frame, 1) if idles else None


def _by_text(history: History, node: Node) -> Loop:
    left, generator = Loop(), None
    for lines, asked in reversed(_staying(history, node)):
        known = [(one, frame) for frame in lines if (one := line_of(history, frame)) is not None and one.loops]
        if not known:
            continue
        line, frame = max(known, key=lambda one: len(one[0].loops))
        if not is_user(frame) and (len(lines) < FEW_TIMES or "while" not in line.loops):
            continue  # one long call of a library
        kinds, ends = line.loops, Ends.COUNTS
        gives = bool(names(line.loop_calls) & GIVES or names(line.gives)) or line.calls_unnamed or line.hands_out
        if kinds[0] == "for" and line.hands_out:
            generator = _within_another(generator, Loop(ends, kinds, gives, line.only_tests, frame, len(lines)))
            continue
        if generator is not None:
            break
        if kinds[0] == "while":
            if _comes_nearer(history, node, lines):
                kinds = ("for", *kinds[1:])
            elif not asked and _returns(history, node, frame):
                left = left if left.kinds else Loop(Ends.COUNTS, ("for",), True, False, frame, len(lines))
                continue
            else:
                ends = Ends.NEVER if line.endless else Ends.CONDITION
                if line.only_tests and names(line.loop_calls) - LOOKS:
                    ends = Ends.UNREAD
        return Loop(ends, kinds, gives, line.only_tests, frame, len(lines))
    return generator or left


def _within_another(inner: Loop | None, outer: Loop) -> Loop:
    """The loop of a generator stands in those of the generator that asks it, which may begin it again and again."""
    if inner is None:
        return outer
    frame = outer.frame if "while" in outer.kinds else inner.frame
    return replace(inner, kinds=(*inner.kinds, *outer.kinds), frame=frame)


OPENS = frozenset("open read_text read_bytes read_csv read_json read_parquet loadtxt genfromtxt".split())
GOES_THROUGH = frozenset("next pop popleft popitem get walk iterdir backward step forward".split())


def rereads(history: History, node: Node) -> bool:
    """True if the loop of a thread reads a file anew in each turn and sleeps between: it polls for what is written there."""
    loop = loop_of(history, node)
    line = line_of(history, loop.frame)
    if line is None or not loop.may_turn_for_ever or line.calls_unnamed:
        return False
    called = names(line.loop_calls)
    return bool(called & OPENS) and "sleep" in called and not called & (GIVES | GOES_THROUGH)


def _in_one_call(history: History, node: Node, loop: Loop) -> Loop | None:
    """The loop, if nearly all samples show one stack: ONE_CALL of a regular expression, which may not return; UNREAD of other C."""
    passed = gil_passed_at(history, node.pid, node.tid)  # whatever call it was in then, it has come back from it
    seen_since = (one for one in stacks_of(history, node.pid, node.tid, LOOP_SECONDS) if one.at >= passed)
    looks = [one.reading for one in seen_since if one.reading.frames]
    if node.stack is None:
        return None
    seen = _alike_to_the_end(looks, node.stack.frames)
    if sum(one.samples for one in seen) < ONE_CALL_SAMPLES:
        return None
    inner = node.stack.frames[0]
    line = line_of(history, inner)
    if line is not None and line.loops and names(line.loop_calls) - LOOKS <= names(line.calls):
        return None  # nothing else is in that loop that could be seen: it may turn
    owned = [one.owns_gil for one in seen if one.owns_gil is not None]
    keeps_gil = len(owned) >= FEW_TIMES and all(owned)
    known = [one for one in (line, line_of(history, user_frame(node.stack))) if one is not None]
    matches = any(matches_expressions(one.calls) for one in known)
    if not (matches or is_plain(history, inner) or (keeps_gil and (line is None or not line.loops))):
        return None
    unknown = not known and keeps_gil
    ends = Ends.ONE_CALL if matches or unknown else Ends.UNREAD
    return replace(loop, ends=ends, gives=False, tests_only=False, lines=1, expression=matches and keeps_gil)


def _alike_to_the_end(looks: list[r.Stack], frames: tuple[r.Frame, ...]) -> list[r.Stack]:
    """The longest row of the newest ones of which nearly all samples are alike: what a thread did before it came there is over."""
    alike = total = begins = 0
    for number, one in enumerate(reversed(looks), 1):
        total += one.samples
        alike += one.samples if one.frames == frames else 0
        if alike >= ONE_CALL_SHARE * total:
            begins = number
    return looks[len(looks) - begins :]


def _with_called(stack: r.Stack) -> tuple[r.Frame, ...]:
    """The program's own frames, outermost first, and the library's function that the innermost one called."""
    own, frames = user_frame(stack), own_frames(stack)
    depth = frames.index(own) if own in frames else 0
    return (*user_frames(stack)[::-1], *frames[max(depth - 1, 0) : depth])


def _staying(history: History, node: Node) -> list[tuple[list[r.Frame], bool]]:
    """The program's own frames that stay, outermost first: the lines that each was seen at, and True for a generator.

    The frame of a generator comes and goes with each item, but it is the same one: its caller's loop ends when its own does.
    """
    stepped = _last_step(history, node.pid)  # what it did before is no part of the loop that it is in now
    stacks = [
        (_with_called(seen.reading), seen.reading.samples)
        for seen in whole(stacks_of(history, node.pid, node.tid, LOOP_SECONDS))
        if seen.at - seen.reading.span_seconds >= stepped
    ]
    total = sum(weight for _, weight in stacks)
    found: list[tuple[list[r.Frame], bool]] = []
    while total:
        depth = len(found)
        at: Counter[tuple[str, str]] = Counter()
        for frames, weight in stacks:
            if len(frames) > depth:
                at[frames[depth].function, frames[depth].file] += weight
        if not at:
            break
        name, weight = at.most_common(1)[0]
        asks = sum(n for frames, n in stacks if depth and len(frames) == depth and _asks(history, frames[-1]))
        if weight + asks < NEARLY_ALL * total or weight < MOSTLY * total:
            break
        total -= asks
        stacks = [one for one in stacks if len(one[0]) > depth and (one[0][depth].function, one[0][depth].file) == name]
        found.append((list(dict.fromkeys(frames[depth] for frames, _ in stacks)), asks > 0))
    return found


def _last_step(history: History, pid: int) -> float:
    """When the process made its last step that was counted; 0 if none was."""
    counted = history.latest(r.Steps, pid)
    ago = None if counted is None else counted.reading.step_ago_seconds
    return 0.0 if counted is None or ago is None else counted.at - ago


def _asks(history: History, frame: r.Frame) -> bool:
    """True if a line is the head of a ``for`` loop, which asks a generator for its next item."""
    line = line_of(history, frame)
    return line is not None and line.text.lstrip().startswith("for ")


def _comes_nearer(history: History, node: Node, lines: list[r.Frame]) -> bool:
    """True if samples show that a ``while`` loop comes nearer to its end; ``lines``: of its function, at which the thread was seen."""
    known = [source for line in lines if (source := line_of(history, line)) is not None]
    fills = [source for source in known if source.fills]
    if any("sleep" in names(source.loop_calls) for source in fills) or (
        fills and grows(sizes_of(history, node.pid, GROWING_SECONDS), GROWN_BYTES)
    ):
        return True
    found = (line_of(history, one) for stack in _lately(history, node) for one in _within(stack, lines[0]))
    return any(source is not None and source.nears_its_end for source in found)


def _returns(history: History, node: Node, frame: r.Frame) -> bool:
    """True if a thread has returned from the function of this frame again and again since it last trained."""
    inside = [bool(_within(stack, frame)) for stack in _lately(history, node)]  # newest first
    return sum(now and not before for now, before in pairwise(inside)) >= TWICE


def _lately(history: History, node: Node) -> Iterator[r.Stack]:
    """The stacks of a thread since it last trained, newest first."""
    series = history.series(r.Stack, node.pid, node.tid, seconds=PROGRESS_SECONDS)
    trained = max((at for at, one in enumerate(series) if at_training(one.reading)), default=-1)
    yield from (one.reading for one in reversed(whole(series[trained + 1 :])) if one.reading.frames)


def _within(stack: r.Stack, frame: r.Frame) -> list[r.Frame]:
    """The frames of a stack that are of that function."""
    return [one for one in user_frames(stack) if (one.function, one.file) == (frame.function, frame.file)]


def sizes_of(history: History, pid: int, seconds: float) -> list[int]:
    """The bytes that a process had resident at the begin of the last seconds and after each quarter; of few looks, at each."""
    sizes = [one.reading.resident_bytes for one in history.series(r.ProcessUsage, pid, seconds=seconds)]
    return [sizes[(len(sizes) - 1) * part // PARTS] for part in range(PARTS + 1)] if len(sizes) > PARTS else sizes


def moves_data(history: History, node: Node) -> bool:
    """True if a thread reads or writes so much itself that its loop is one over data, which come to an end."""
    rate = history.rate(r.Thread, node.pid, node.tid, of=chars_of, seconds=LOOP_SECONDS)
    return rate is not None and rate >= WORKS_BYTES


def releases_gil(history: History, node: Node) -> bool:
    """True if a thread was seen without the GIL half of the time: it computes in native code and does not only run Python.

    Measured: loops of small torch operations 80 to 100 % of the dumps, of plain Python none.
    """
    known = [seen.reading.owns_gil for seen in stacks_of(history, node.pid, node.tid, LOOP_SECONDS)]
    return known.count(False) > 0 and known.count(False) >= known.count(True)
