"""The other pages of ``perfwatch top``: all stacks, folded, and the full verdict. Both can be scrolled."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from perfwatch.report.folded_stacks import fold, newest
from perfwatch.report.folding import FoldedStacks
from perfwatch.report.terminal import VerdictReport
from perfwatch.text import clean
from perfwatch.triage.case import Case
from perfwatch.verdict import Verdict

KEYS = "b back  j/k scroll  s stacks  v verdict  q quit"


@dataclass(frozen=True)
class Page:
    """Something longer than the screen, from line ``top`` on, above the keys."""

    name: str
    inner: RenderableType
    top: int
    said: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """Yield as many lines as fit."""
        height = options.height or console.size.height
        lines = console.render_lines(self.inner, options.update(height=None), pad=True)
        first = max(0, min(self.top, len(lines) - (height - 1)))
        shown = lines[first : first + height - 1]
        for line in shown:
            yield from line
            yield Segment.line()
        for _ in range(height - 1 - len(shown)):
            yield Segment.line()
        below = len(lines) - first - len(shown)
        foot = Text(KEYS, "reverse").append(f"  {below} more lines below" if below else "", "not reverse")
        foot.append(f"  {clean(self.said)}", "not reverse")
        foot.truncate(options.max_width, pad=True)
        foot.no_wrap, foot.end = True, ""
        yield foot


def stacks_page(case: Case) -> RenderableType:
    """Where everybody is."""
    return FoldedStacks(fold(newest(case.history, case.job), case.job.world_size))


def verdict_page(verdict: Verdict | None) -> RenderableType:
    """All of it."""
    return Text("no verdict yet: looking") if verdict is None else VerdictReport(verdict)
