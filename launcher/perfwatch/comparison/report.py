"""Two runs side by side: first the conditions that differ, then steps, then time and resources."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.comparison.comparison import (
    Comparison,
    Difference,
    RateDifference,
    Side,
    StepDifference,
    disagreement,
    sure_sign,
)
from perfwatch.text import clean, duration

MOST_CONDITIONS = 12
NEGLIGIBLE_SHARE = 0.005  # in both runs: not shown


@dataclass(frozen=True)
class ComparisonReport:
    """What matters of ``comparison``; everything is in ``--json``."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts from top to bottom; an empty part is left out."""
        both = self.comparison
        yield from self._unlike()
        for name, side in (("A", both.a), ("B", both.b)):
            yield from _side(name, side)
        if both.verdict_changed:
            yield Text(f"the verdict changed: {_verdict(both.a)} -> {_verdict(both.b)}", style="bold yellow")
        yield from self._steps()
        yield from self._differences()
        yield Text(
            "95 % intervals: block bootstrap within each run (1000 draws, seeded); what differs between two starts of the same "
            "program is not in them",
            style="dim",
        )

    def _unlike(self) -> Iterator[RenderableType]:
        matters = [one for one in self.comparison.unlike if one.matters]
        if matters:
            yield Text("These runs are not alike; a difference may come from this alone:", style="bold yellow")
        table = _table("", "A", "B")
        for one in self.comparison.unlike[:MOST_CONDITIONS]:
            style = "yellow" if one.matters else "dim"
            table.add_row(*(Text(clean(text or "not known"), style=style) for text in (one.name, one.a, one.b)))
        if self.comparison.unlike:
            yield table
        if len(self.comparison.unlike) > MOST_CONDITIONS:
            yield Text(f"and {len(self.comparison.unlike) - MOST_CONDITIONS} more in --json", style="dim")

    def _steps(self) -> Iterator[RenderableType]:
        if not self.comparison.steps:
            return
        both, rate = self.comparison, self.comparison.rate
        table = _table("", "A", "B", "B against A", "95 % interval")
        if rate is not None:
            _add(table, "steps a second", f"{rate.a_per_second:.4g}", f"{rate.b_per_second:.4g}", rate)
        for one in both.steps:
            name = f"step time, {'median' if one.quantile == 'p50' else one.quantile}"
            _add(table, name, _seconds(one.a_seconds), _seconds(one.b_seconds), one)
        yield table
        if said := disagreement(both):
            yield Text(f"{said[:1].upper()}{said[1:]}.", style="bold yellow")

    def _differences(self) -> Iterator[RenderableType]:
        shown = [one for one in self.comparison.differences if not _negligible(one)]
        for group in dict.fromkeys(one.group for one in shown):
            rows = [one for one in shown if one.group == group]
            intervals = ["95 % interval"] if any(one.interval is not None for one in rows) else []
            table = _table(_HEADINGS.get(group, group), "A", "B", "B minus A", *intervals)
            for one in rows:
                low, high = one.interval or (0.0, 0.0)
                interval = "" if one.interval is None else f"{_signed(low, one.unit)} to {_signed(high, one.unit)}"
                table.add_row(
                    one.name,
                    _value(one.a, one.unit),
                    _value(one.b, one.unit),
                    Text(_change(one), style="bold" if one.sure else ""),
                    *([interval] if intervals else []),
                )
            yield table


_HEADINGS = {"phase": "training thread is at"}


def _add(table: Table, name: str, a: str, b: str, one: RateDifference | StepDifference) -> None:
    interval = one.change_interval
    change = Text(_percent(one.change), style="bold" if sure_sign(interval) else "")
    shown = "too few steps" if interval is None else f"{_percent(interval[0])} to {_percent(interval[1])}"
    table.add_row(name, a, b, change, shown)


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim", pad_edge=False)
    for number, heading in enumerate(headings):
        numbers = len(headings) > 3 and number > 0
        table.add_column(heading, overflow="fold", justify="right" if numbers else "left")
    return table


def _side(name: str, side: Side) -> Iterator[RenderableType]:
    steps = f"{side.steps:,} steps, {side.timed_steps:,} timed" if side.steps else "no steps counted"
    yield Text(f"{name}  {clean(side.session)}", style="bold", overflow="fold")
    yield Text(f"   {clean(' '.join(side.command))}", style="dim", overflow="fold")
    yield Text(f"   {duration(side.seconds)}, {steps}, {_verdict(side)}")
    if side.failed:
        yield Text(f"   it failed: {clean(side.failed)}", style="bold red")
    for text in side.missing:
        yield Text(f"   {clean(text)}", style="yellow")


def _verdict(side: Side) -> str:
    said = " ".join(filter(None, (side.state, side.cause)))
    return said if side.lived is None else f"{said} (while it ran: {' '.join(filter(None, side.lived))})"


def _negligible(one: Difference) -> bool:
    least = NEGLIGIBLE_SHARE if one.unit == "share" else 0.05
    return max(abs(one.a or 0.0), abs(one.b or 0.0)) < least


def _change(one: Difference) -> str:
    return "" if one.a is None or one.b is None else _signed(one.b - one.a, one.unit)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "not seen"
    return f"{value:.1%}" if unit == "share" else f"{value:,.{0 if abs(value) >= 100 else 2}f} {unit}"


def _signed(value: float, unit: str) -> str:
    return f"{100 * value:+.1f}" if unit == "share" else f"{value:+,.{0 if abs(value) >= 100 else 2}f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
