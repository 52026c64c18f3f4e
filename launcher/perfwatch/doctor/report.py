"""The findings of ``perfwatch doctor`` on a terminal: ok, limited or missing, each with its fix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.doctor.checkup import Ability
from perfwatch.text import clean

STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}


@dataclass(frozen=True)
class CheckupReport:
    """Findings under a heading, ready to be printed."""

    heading: str
    abilities: Sequence[Ability]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the heading and the table."""
        yield Text(clean(self.heading), style="bold")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=8)
        table.add_column(min_width=12, max_width=22)
        table.add_column(overflow="fold")
        for one in self.abilities:
            shown = Text(clean(one.finding))
            if one.fix:
                shown.append(f"\n-> {clean(one.fix)}", "bold")
            table.add_row(Text(one.status, style=STYLES.get(one.status, "")), clean(one.name), shown)
        yield table
