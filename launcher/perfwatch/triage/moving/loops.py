"""Which loop of the program a running thread turns in: one that counts (``for``) or one that waits for a condition (``while``).

Over many samples the outer frames of a thread stay the same and the inner ones change. The innermost frame that stays is
the one whose loop turns, or whose caller's does.
"""

import re
from collections import Counter

import msgspec

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import stacks_of, was_at
from perfwatch.triage.moving.nearing import comes_nearer, comes_out, whole
from perfwatch.triage.moving.thresholds import WORKS_BYTES
from perfwatch.triage.moving.work import chars_of
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.polling import source_of
from perfwatch.triage.words.code import line_of, matches_expressions, names
from perfwatch.triage.words.frames import is_named, show, user_frames
from perfwatch.verdict import Evidence, Finding
from perfwatch_probes import readings as r

STAYS_SHARE = 0.9  # of the samples; a nonblocking sample tears in about 3 %
GENERATOR_SHARE = 0.5  # of the samples: else the loop's body takes the time, and what it is given is another matter
SECONDS = 30.0
OWNED_LOOKS, MANY_SAMPLES, ALIKE_SHARE = 3, 100, 0.95  # a nonblocking sample tears in about 3 %
MANY_OF_A_LOOP, ALIKE_IN_A_LOOP = 300, 0.99  # where it stands in a loop that does other things as well
TRAINS = frozenset({"backward", "step"})
# A parameter that is taken down its gradient by the program itself: ``w -= rate * gradient``; a counter goes down by one number.
DESCENDS = re.compile(r"^[\w.\[\]]+ -= .*\*|\.sub_\(.*(?:\*|\balpha=)|\.add_\(.*\balpha=-")
COUNTED_LOOP = 5.0  # times the patience, for what is not known to turn until a condition comes true: it reaches its end


def trains_around(history: History, node: Node) -> bool:
    """Whether the line is one of the loop that trains, or a collection: a long call returns, and a brief step escapes us."""
    source = source_of(history, node)
    return source is not None and ("collect" in names(source.calls) or names(source.loop_calls) >= TRAINS)


def descends(history: History, node: Node) -> bool:
    """Whether a line of its loop makes an update by itself, in a run that was never seen at torch's own.

    It may be training, or a search that does not converge.
    """
    if was_at(history, node.pid, node.tid, "backward", "optimizer"):
        return False
    sights = (seen.reading for seen in stacks_of(history, node.pid, node.tid, SECONDS))
    known = (line_of(history, frame) for frame in {frame for stack in sights for frame in user_frames(stack)})
    return any(line is not None and bool(line.loops) and DESCENDS.search(line.text) is not None for line in known)


def gets_nowhere(case: Case, node: Node) -> tuple[Evidence, ...]:
    """What shows that a running thread gets nowhere: no training code among its samples, no io of its own."""
    seen = profile(case.history, node.pid, node.tid, seconds=SECONDS)
    stays = case.saw(
        "stack",
        f"pid {node.pid}",
        "stays in the program's own code",
        f"{seen.samples} samples below {show(node.frame)}, none in training code",
        "backward and optimizer in each step",
    )
    if node.motion.io_calls != 0:
        return (stays,)
    entity = f"pid {node.pid} thread {node.tid}"
    return stays, case.saw("io", entity, "does no io", "0 calls", "reads or writes now and then", node.thread_at)


def moves_data(history: History, node: Node) -> bool:
    """Whether a running thread reads or writes so much itself that its loop is one over data, which come to an end."""
    rate = history.rate(r.Thread, node.pid, node.tid, of=chars_of, seconds=SECONDS)
    return rate is not None and rate >= WORKS_BYTES


def computes_on_card(case: Case, pid: int) -> bool:
    """Whether the card of a rank, its own for all that is known, has work all the time: what is computed there may take long."""
    return any(card.kind == "work" for card in regimes(case.history, pid))


def releases_gil(history: History, node: Node) -> bool:
    """Whether a running thread was seen without the GIL half of the time: it computes, in torch or elsewhere, and does not only run Python.

    Measured: loops of small torch operations 80 to 100 % of the dumps, of plain Python none.
    """
    known = [seen.reading.owns_gil for seen in stacks_of(history, node.pid, node.tid, SECONDS)]
    return known.count(False) > 0 and known.count(False) >= known.count(True)


def goes_through_data(history: History, node: Node) -> bool:
    """Whether a running thread does so, and no loop is known that it turns in until a condition comes true."""
    return moves_data(history, node) and may_end(history, node)


def in_one_call(history: History, node: Node) -> bool:
    """Whether a running thread stands in one call of a regular expression: every sample at that line, every dump saw it own the GIL.

    Such a call may go wild and never return. A loop shows several of its lines, be it seldom; other calls that keep the GIL may
    take their time.
    """
    source = source_of(history, node)
    if source is None or not matches_expressions(source.calls):
        return False
    stacks = [seen.reading for seen in stacks_of(history, node.pid, node.tid, SECONDS)]
    known = [stack.owns_gil for stack in stacks if stack.owns_gil is not None]
    samples = sum(stack.samples for stack in stacks)
    alike = Counter(stack.frames for stack in stacks for _ in range(stack.samples)).most_common(1)
    many, share = (MANY_SAMPLES, ALIKE_SHARE) if not source.loops else (MANY_OF_A_LOOP, ALIKE_IN_A_LOOP)
    if source.loops and (source.loop_lines is None or set(source.loop_calls) <= set(source.calls)):
        return False  # nothing else is in that loop that could be seen
    return len(known) >= OWNED_LOOKS and all(known) and samples >= many and alike[0][1] >= share * samples


def may_end(history: History, node: Node) -> bool:
    """Whether no loop is known that a running thread turns in until a condition comes true: a ``for``, or a library's long call."""
    return "while" not in turning(history, node)


def counts(history: History, node: Node) -> bool:
    """Whether loops are known that a running thread turns in, and all of them come to their end: ``for`` loops."""
    loops = turning(history, node)
    return bool(loops) and "while" not in loops


def turning(history: History, node: Node) -> tuple[str, ...]:
    """Kinds of the loops, innermost first, in the innermost frame that stays and has any; () when not known.

    A ``while`` that is seen to come nearer to its end is one that has an end.
    """
    return _turning(history, node)[0]


def turning_at(history: History, node: Node) -> r.Frame | None:
    """A line of that frame, in the innermost of the loops."""
    return _turning(history, node)[1]


def only_tests(history: History, node: Node) -> bool:
    """Whether a running thread turns in a loop that changes nothing, so that only others can end it."""
    source = line_of(history, _turning(history, node)[1])
    return source is not None and source.only_tests


def blamed(history: History, node: Node, found: Finding, loop: r.Frame | None = None) -> Finding:
    """With the frame whose loop turns to blame, where samples stand in functions that it calls; ``loop``: where that is known."""
    frame = loop or _turning(history, node)[1]
    if frame is None or node.frame is None or frame.function == node.frame.function or not is_named(frame):
        return found
    culprits = tuple(
        msgspec.structs.replace(one, frame=show(frame)) if one.frame == show(node.frame) else one
        for one in found.culprits
    )
    return msgspec.structs.replace(
        found, culprits=culprits, summary=f"{found.summary}; the loop at {show(frame)} turns on", next=_look_at(frame)
    )


def _look_at(frame: r.Frame) -> tuple[str, ...]:
    return (f"look at {show(frame)}: what would end that loop?",)


def _turning(history: History, node: Node) -> tuple[tuple[str, ...], r.Frame | None]:
    return history.once(("turning", node.pid, node.tid, node.role), lambda: _find_turning(history, node))


def _find_turning(history: History, node: Node) -> tuple[tuple[str, ...], r.Frame | None]:
    staying = _staying(history, node)
    generator = _iterated(history, node, len(staying))
    left: r.Frame | None = None
    for lines in reversed([*staying, generator] if generator else staying):
        known = [(source.loops, line) for line in lines if (source := line_of(history, line))]
        loops, frame = max(known, key=lambda one: len(one[0]), default=((), None))
        if loops[:1] == ("while",) and frame is not None and node.role == "rank":
            if comes_nearer(history, node, lines):
                return ("for", *loops[1:]), frame
            if lines is not generator and comes_out(history, node, frame):
                left = left or frame  # its loop ends each time: what calls it again?
                continue
        if loops:
            return loops, frame
    return (("for",), left) if left else ((), None)


def _iterated(history: History, node: Node, depth: int) -> list[r.Frame]:
    """Lines of the generator that is gone through at the header of a ``for`` loop of the innermost frame that stays.

    Its frame comes and goes with each item, but it is the same one: the loop ends when the generator's own does.
    """
    at: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], list[r.Frame]] = {}
    total = 0
    for seen in whole(stacks_of(history, node.pid, node.tid, SECONDS)):
        total += seen.reading.samples
        frames = user_frames(seen.reading)[::-1]
        header = line_of(history, frames[depth - 1]) if len(frames) > depth > 0 else None
        if header is not None and header.text.lstrip().startswith("for "):
            name = (frames[depth].function, frames[depth].file)
            at[name] += seen.reading.samples
            lines.setdefault(name, []).append(frames[depth])
    name, samples = at.most_common(1)[0] if at else (("", ""), 0)
    return list(dict.fromkeys(lines[name])) if samples > GENERATOR_SHARE * total else []


def _staying(history: History, node: Node) -> list[list[r.Frame]]:
    """The program's own frames that stay, outermost first; of each, the lines that it was seen at."""
    stacks = [
        (user_frames(seen.reading)[::-1], seen.reading.samples)
        for seen in whole(stacks_of(history, node.pid, node.tid, SECONDS))
    ]
    total = sum(weight for _, weight in stacks)
    found: list[list[r.Frame]] = []
    while total:
        depth = len(found)
        at: Counter[tuple[str, str]] = Counter()
        for frames, weight in stacks:
            if len(frames) > depth:
                at[frames[depth].function, frames[depth].file] += weight
        if not at or at.most_common(1)[0][1] < STAYS_SHARE * total:
            break
        name = at.most_common(1)[0][0]
        stacks = [one for one in stacks if len(one[0]) > depth and (one[0][depth].function, one[0][depth].file) == name]
        found.append(list(dict.fromkeys(frames[depth] for frames, _ in stacks)))
    return found
