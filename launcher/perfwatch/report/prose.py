"""The report as text: for a terminal, a mail, a log. The same words as on the page, in lines of 100 columns."""

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.report.captured import captured
from perfwatch.report.folding import as_text as folded_text
from perfwatch.report.gpu_idle import off_gpu
from perfwatch.report.headroom import headroom_lines
from perfwatch.report.replay import ReplayReport
from perfwatch.report.stacks import all_folded
from perfwatch.report.story import Story, conditions, probes, threads
from perfwatch.report.waiting import waiting_lines, waiting_sum
from perfwatch.text import clean, duration

WIDTH = 100
MOST_THREADS, MOST_EVENTS = 40, 40
LONGEST = 240


def as_text(story: Story) -> str:
    """The whole report."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, markup=False, emoji=False, color_system=None)
    console.print(ReplayReport(story.folder, story.recording, story.at, story.verdict, story.lived))
    for title, body in _sections(story):
        console.print()
        console.print(Text(title.upper()))
        console.print(body)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _sections(story: Story) -> Iterator[tuple[str, RenderableType]]:
    yield "stacks, folded", Text(folded_text(all_folded(story)).rstrip("\n"), no_wrap=True, overflow="ellipsis")
    waited = off_gpu(story.case)
    if waited is not None:
        lines = [f"{line.share_of_idle:>6.0%}  {clean(line.text)}" for line in waiting_lines(waited)]
        yield "what the gpu waits for", Text("\n".join([waiting_sum(waited), *lines]))
    levers = headroom_lines(story)
    if levers:
        yield "what would make it faster", Text("\n").join(shortened(line) for line in levers)
    listed = threads(story)
    if listed:
        table = _table("role", "rank", "pid", "tid", "thread", "state", "in", "waits in")
        for one in listed[:MOST_THREADS]:
            rank = "" if one.rank is None else str(one.rank)
            cells = (one.role, rank, str(one.pid), str(one.tid), one.name, one.state, one.frame, one.waits_for)
            table.add_row(*(shortened(cell) for cell in cells))
        yield f"threads ({len(listed)})", table
    if story.recording.events:
        table = _table("after", "what", "text")
        for event in story.recording.events[-MOST_EVENTS:]:
            table.add_row(duration(event.at), shortened(event.kind), shortened(event.text))
        yield f"events ({len(story.recording.events)})", table
    captures = captured(story)
    if captures:
        lines = [
            line
            for one in captures
            for line in (f"{duration(one.at)}: {one.text}", *(f"  {line}" for line in one.lines))
        ]
        yield f"captures ({len(captures)})", Text("\n").join(shortened(line) for line in lines)
    costs = probes(story)
    if costs:
        table = _table("probe", "calls", "CPU", "without an answer", "why")
        for cost in costs:
            table.add_row(
                cost.probe,
                str(cost.calls),
                f"{duration(cost.cpu_seconds, 3)}",
                str(cost.failed or ""),
                shortened(cost.reason),
            )
        yield "what perfwatch used", table
    table = _table("", "")
    table.show_header = False
    for name, value in conditions(story):
        table.add_row(shortened(name), shortened(value))
    yield "how it was measured", table


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def shortened(text: str) -> Text:
    """One harmless cell."""
    line = clean(text)
    return Text(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…")
