"""What the cards waited for, by line: the table, the sentence above it, and the flame graph (width: idle time; depth: calls)."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from perfwatch.report.gpu_idle import Awaited, OffGpu
from perfwatch.text import clean, duration
from perfwatch.triage.job import rank_ranges
from perfwatch.triage.questions import is_user, show

MOST_LINES = 12
LEAST_SHARE, LEAST_LINE = 0.003, 0.01  # of the idle time: narrower boxes cannot be seen, and such a line is no news
WELL_TOLD_APART = 0.85  # a known split comes out within five points above it (tests/triage/test_off_gpu.py)
NEARLY_ALWAYS, HARDLY_EVER = 0.9, 0.01  # idle: then any split by time is right, or none matters
LONGEST_NAME = 200
MOST_ROWS, MOST_BOXES = 60, 1500
OWN, LIBRARY, ROOT = ("#f08c3a", "#f5a524", "#e5703a"), ("#8b98a8", "#9aa6b4", "#7d8b9c"), "#c8553d"


@dataclass(frozen=True)
class WaitingLine:
    """One line of the program: its share of the cards' idle time, and of the time that stacks were sampled in."""

    text: str
    share_of_idle: float
    share_of_time: float


@dataclass
class Box:
    """One frame and everything that was called from it; ``seconds`` of idle time, ``begins`` from the left."""

    name: str
    own: bool
    seconds: float = 0.0
    begins: float = 0.0
    inner: dict[str, "Box"] = field(default_factory=dict)


@dataclass(frozen=True)
class FlameBox:
    """One box: ``left`` and ``width`` as shares of the graph, ``row`` from the top; ``told``: its shares in words."""

    name: str
    left: float
    width: float
    row: int
    colour: str
    told: str


def waiting_lines(found: OffGpu) -> list[WaitingLine]:
    """The program's own lines, the most waited for first; none where the card hardly ever waits."""
    idle: dict[str, float] = defaultdict(float)
    for one in found.awaited:
        idle[_own(one)] += one.idle_seconds
    ordered = sorted(idle.items(), key=lambda line: -line[1])[:MOST_LINES]
    return [
        WaitingLine(text, seconds / found.idle_seconds, seconds / found.measured_seconds)
        for text, seconds in ordered
        if found.idle_share >= HARDLY_EVER and seconds / found.idle_seconds >= LEAST_LINE
    ]


def waiting_sum(found: OffGpu) -> str:
    """What was measured, and that the parts add up to it."""
    whose = f"gpu {rank_ranges(found.cards)}" if found.cards else "the card"
    handed_out = sum(one.idle_seconds for one in found.awaited)
    text = (
        f"While stacks were sampled ({duration(found.measured_seconds)} of samples of {whose}), no kernel was resident for "
        f"{duration(found.idle_seconds)}, {found.idle_share:.1%} of the time; the lines below add up to {duration(handed_out)}. "
        f"Over the whole recording it was {found.all_idle_share:.1%}."
    )
    if found.source != "gpm":
        text += " This card tells only whether a kernel was resident."
    if found.idle_share < HARDLY_EVER:
        text += " That is hardly ever: there is nothing to gain here."
    elif found.idle_share < NEARLY_ALWAYS and found.told_apart < WELL_TOLD_APART:
        text += (
            f" What these lines do is shorter than a look at the card: they explain {found.told_apart:.0%} of the differences "
            "between samples, and what is left is split by time."
        )
    return text


def flame(found: OffGpu) -> list[FlameBox]:
    """Every box that is wide enough to be seen, the widest first: what calls comes before what is called."""
    root = tree(found.awaited)
    whole = root.seconds or 1.0
    boxes, waiting = [], [(0, root)]
    while waiting:
        row, box = waiting.pop()
        boxes.append((row, box))
        if row < MOST_ROWS:
            waiting += [(row + 1, inner) for inner in box.inner.values() if inner.seconds > whole * LEAST_SHARE]
    boxes.sort(key=lambda one: (-one[1].seconds, one[0]))
    return [
        FlameBox(
            name=box.name,
            left=box.begins / whole,
            width=box.seconds / whole,
            row=row,
            colour=_colour(box, row),
            told=f"{box.seconds / whole:.1%} of the waiting, {box.seconds / found.measured_seconds:.1%} of the time, "
            f"{duration(box.seconds, 3)} in all",
        )
        for row, box in boxes[:MOST_BOXES]
    ]


def tree(awaited: Iterable[Awaited]) -> Box:
    """All stacks with what was called from where, outermost first, each box with its place from the left."""
    root = Box("the GPU waits", False)
    for one in awaited:
        root.seconds += one.idle_seconds
        here = root
        for frame in reversed(one.frames):
            name = frame_name(frame.function, frame.file, frame.line)
            here = here.inner.setdefault(name, Box(name, is_user(frame)))
            here.seconds += one.idle_seconds
    _place(root, 0.0)
    return root


def frame_name(function: str, file: str, line: int) -> str:
    """One harmless line."""
    name = clean(f"{function} ({file.rsplit('/', 1)[-1]}:{line})")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _place(box: Box, begins: float) -> None:
    waiting = [(box, begins)]
    while waiting:  # a stack may be a thousand frames deep
        here, left = waiting.pop()
        here.begins = left
        for inner in sorted(here.inner.values(), key=lambda one: -one.seconds):
            waiting.append((inner, left))
            left += inner.seconds


def _own(one: Awaited) -> str:
    frame = next((frame for frame in one.frames if is_user(frame)), one.frames[0] if one.frames else None)
    return show(frame) or "no frame"


def _colour(box: Box, row: int) -> str:
    if row == 0:
        return ROOT
    shades = OWN if box.own else LIBRARY
    return shades[sum(map(ord, box.name)) % len(shades)]
