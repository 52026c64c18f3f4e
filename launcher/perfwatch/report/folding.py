"""Folded stacks on one page: the ranks that agree, then those that stand apart, each with its stack.

``FoldedStacks`` renders itself on a terminal; ``as_text`` is the same page without colour, for a file or a log.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.report.folded_stacks import Folded, Group
from perfwatch.text import clean
from perfwatch.triage.job import rank_ranges
from perfwatch.triage.questions import is_user, show
from perfwatch_probes.readings import Frame

MOST_IN_FULL = 6  # groups with their stacks; with 8 lines each that is a page
MOST_ON_A_LINE = 10  # further groups, one line each
MOST_FRAMES = 6  # of one stack
MOST_PLACES = 4  # named of a group that has no ranks, or more than one host
LONGEST_RANGES = 60  # characters; ranks in no order fill a page of their own


@dataclass(frozen=True)
class FoldedStacks:
    """One page: ``console.print(FoldedStacks(folded))``."""

    folded: Folded

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield a line of totals, then group by group."""
        for depth, text in _page(self.folded):
            style = ("bold", "", "dim")[depth]
            yield Text(text, style=style, no_wrap=True, overflow="ellipsis")


def as_text(folded: Folded) -> str:
    """The same page as plain text, with a line end after each line."""
    return "".join(f"{line}\n" for _, line in _page(folded))


def heading(group: Group, ranks: int) -> str:
    """``ranks 0-126,128-511 (511 of 512)``, or the pids where no rank is known."""
    what = _what(group)
    if not group.ranks:
        pids = ", ".join(str(place.pid) for place in group.places[:MOST_PLACES])
        more = f" and {len(group.places) - MOST_PLACES} more" if len(group.places) > MOST_PLACES else ""
        return f"{_counted(what, len(group.places))} pid {pids}{more}"
    shown = shortened(rank_ranges(group.ranks))
    if group.role == "rank":
        text = f"rank{'s' if len(group.ranks) > 1 else ''} {shown}"
        text += f" ({len(group.ranks)} of {ranks})" if len(group.ranks) > 1 else ""
        doubled = len(group.places) - len(group.ranks)
        text += f", {doubled} of them claimed twice" if doubled > 0 else ""
    else:
        text = f"{len(group.places)} {_counted(what, len(group.places))} of rank {shown}"
    if len(group.places) == 1:
        text += f", pid {group.places[0].pid}"
    hosts = list(dict.fromkeys(place.host for place in group.places if place.host))
    if hosts:
        text += f" on {', '.join(hosts[:MOST_PLACES])}"
        text += f" and {len(hosts) - MOST_PLACES} more hosts" if len(hosts) > MOST_PLACES else ""
    return text


def shortened(ranges: str) -> str:
    """Rank ranges that fit on a line: ``0,2,4,... (256)`` would not."""
    if len(ranges) <= LONGEST_RANGES:
        return ranges
    return ranges[:LONGEST_RANGES].rpartition(",")[0] + ",..."


def _what(group: Group) -> str:
    return {"rank": "rank", "child": "child process", "pool_worker": "pool worker", "compile": "compile worker"}.get(
        group.role, group.role
    )


def _counted(what: str, count: int) -> str:
    """``worker``, ``workers``, ``child processes``."""
    return what if count == 1 else f"{what}es" if what.endswith("s") else f"{what}s"


def _page(folded: Folded) -> Iterator[tuple[int, str]]:
    """(0: heading, 1: frame, 2: remark) and the line."""
    ranks = folded.ranks
    world = ranks + len(folded.absent)
    total = f"{ranks} of {world} ranks" if folded.absent else f"{ranks} rank{'' if ranks == 1 else 's'}"
    total += f" and {folded.workers} other process{'' if folded.workers == 1 else 'es'}" if folded.workers else ""
    count = len(folded.groups)
    alone = ranks + folded.workers == 1
    yield 2, total if alone else f"{total}, all at one stack" if count == 1 else f"{total}, {count} different stacks"
    if folded.absent:
        yield 0, f"no stack of rank {shortened(rank_ranges(folded.absent))} ({len(folded.absent)} of {world})"
    for group in folded.groups[:MOST_IN_FULL]:
        yield 0, clean(heading(group, ranks))
        for text in _frames(group.frames):
            yield 1, f"    {clean(text)}"
        if group.variants > 1:
            yield 2, f"    ({group.variants} variants inside the library call)"
    rest = folded.groups[MOST_IN_FULL:]
    for group in rest[:MOST_ON_A_LINE]:
        own = next((frame for frame in group.frames if is_user(frame)), group.frames[0])
        yield 0, clean(f"{heading(group, ranks)} in {show(own)}")
    if rest[MOST_ON_A_LINE:]:
        left = Counter(_what(group) for group in rest[MOST_ON_A_LINE:] for _ in group.places)
        who = " and ".join(f"{count} {_counted(what, count)}" for what, count in left.items())
        yield 2, f"and {len(rest) - MOST_ON_A_LINE} more stacks of {who}"


def _frames(frames: tuple[Frame, ...]) -> list[str]:
    """Innermost first; of the library's frames in between only the ends, and no more than a few in all."""
    kept = [
        index
        for index, frame in enumerate(frames)
        if is_user(frame) or index == 0 or (index + 1 < len(frames) and is_user(frames[index + 1]))
    ]
    lines = []
    last = -1
    for index in kept[:MOST_FRAMES]:
        if index > last + 1:
            lines.append(f"... {index - last - 1} more inside")
        lines.append(show(frames[index]) or "")
        last = index
    outside = len(frames) - 1 - last
    return [*lines, f"... {outside} more around it"] if outside > 0 else lines
