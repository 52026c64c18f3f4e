"""The other pages of ``perfwatch top``: all stacks, folded, and the full verdict. Both can be scrolled."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from perfwatch.report.folded_stacks import fold, newest
from perfwatch.report.folding import FoldedStacks
from perfwatch.report.terminal import VerdictReport
from perfwatch.text import clean
from perfwatch.top.board_view import Scroll
from perfwatch.triage.case import Case
from perfwatch.verdict import Verdict

KEYS = "b back  j/k scroll  ? help  s stacks  v verdict  q quit"
HELP = (
    ("", "keys"),
    ("?, h", "this page"),
    ("s", "the stacks of all ranks, folded"),
    ("v", "the whole verdict"),
    ("c", "capture a torch trace through the watcher"),
    ("Tab", "the next job that is watched here"),
    ("arrows, j, k", "scroll by a line; so does the mouse wheel"),
    ("Space, Page Down", "scroll by a screen; Page Up goes back"),
    ("g, G", "to the beginning, to the end; so do Home and End"),
    ("b, Escape", "back to the first page"),
    ("q, Ctrl-C", "quit; the job is not affected"),
    ("", ""),
    ("", "cards"),
    ("works", "a kernel runs and moves data or uses the tensor cores"),
    ("spins", "a kernel runs and moves no data: it waits inside the GPU, mostly for another rank"),
    ("waits", "no kernel runs: the card waits for the host"),
    ("tens, dram", "share of time in which the tensor cores, the memory were in use"),
    ("", ""),
    ("", "processes"),
    ("st", "state of the main thread: R runs, S sleeps, D in the kernel, T stopped, Z ended"),
    ("colour", "green makes progress, cyan is busy, red makes none"),
    ("in, waits in", "the program's own line; the system call that blocks it"),
)


@dataclass(frozen=True)
class Page:
    """Something longer than the screen, scrolled, above the keys."""

    name: str
    inner: RenderableType
    scroll: Scroll
    said: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """Yield as many lines as fit."""
        height = options.height or console.size.height
        lines = console.render_lines(self.inner, options.update(height=None), pad=True)
        first = self.scroll.at_most(len(lines) - (height - 1))
        shown = lines[first : first + height - 1]
        for line in shown:
            yield from line
            yield Segment.line()
        for _ in range(height - 1 - len(shown)):
            yield Segment.line()
        below = len(lines) - first - len(shown)
        foot = Text().append(KEYS, "reverse").append(f"  {below} more lines below" if below else "")
        foot.append(f"  {clean(self.said)}")
        foot.truncate(options.max_width, pad=True)
        foot.no_wrap, foot.end = True, ""
        yield foot


def stacks_page(case: Case) -> RenderableType:
    """Where every rank and worker is."""
    return FoldedStacks(fold(newest(case.history, case.job), case.job.world_size))


def verdict_page(verdict: Verdict | None) -> RenderableType:
    """All of it."""
    return Text("no verdict yet: sampling") if verdict is None else VerdictReport(verdict)


def help_page() -> RenderableType:
    """What the keys do and what the columns mean."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, text in HELP:
        table.add_row(Text(key, "bold"), Text(text, "" if key else "dim"))
    return table
