"""The flame graph of what the GPU waits for: width is idle time of the card, depth is who called whom."""

from dataclasses import dataclass

from perfwatch.report.gpu_idle import OffGpu
from perfwatch.report.waiting import LEAST_SHARE, Box, tree
from perfwatch.text import short_time

MOST_ROWS, MOST_BOXES = 60, 1500
OWN, LIBRARY, ROOT = ("#f08c3a", "#f5a524", "#e5703a"), ("#8b98a8", "#9aa6b4", "#7d8b9c"), "#c8553d"


@dataclass(frozen=True)
class Frame:
    """One box: ``left`` and ``width`` as shares of the graph, ``row`` from the top; ``told``: its shares in words."""

    name: str
    left: float
    width: float
    row: int
    colour: str
    told: str


def flame(found: OffGpu) -> list[Frame]:
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
        Frame(
            name=box.name,
            left=box.begins / whole,
            width=box.seconds / whole,
            row=row,
            colour=_colour(box, row),
            told=f"{box.seconds / whole:.1%} of the waiting, {box.seconds / found.measured_seconds:.1%} of the time, "
            f"{short_time(box.seconds)} in all",
        )
        for row, box in boxes[:MOST_BOXES]
    ]


def _colour(box: Box, row: int) -> str:
    if row == 0:
        return ROOT
    shades = OWN if box.own else LIBRARY
    return shades[sum(map(ord, box.name)) % len(shades)]
