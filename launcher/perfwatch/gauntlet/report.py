"""The tables of a ``Score`` on a terminal. The console decides width, colour and encoding."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.gauntlet.score import NO_VERDICT, PATIENCE_CLASSES, Row, Score
from perfwatch.verdict import confidence_word

STATES = ("hung", "slow", "busy", "healthy", "gone", "inconclusive", NO_VERDICT)


class GauntletReport:
    """A score, ready to be printed.

    Args:
        score: the figures.
        skipped: drill -> why it could not run here.
        conditions: how it was made, one line; stands at the end, so that figures never travel without it.
    """

    def __init__(self, score: Score, skipped: dict[str, str], conditions: str) -> None:
        self.score = score
        self.skipped = skipped
        self.conditions = conditions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the tables, the most important figures last, where the eye is after a long run."""
        score = self.score
        if not score.runs:
            yield Text("No drill has run.")
        else:
            yield from _titled("Causes", self._causes())
            yield from _titled("States: what is true (rows), what was said (columns)", self._confusion())
            yield from _titled("Time to a right verdict, seconds", self._times())
            yield from _titled("Reliability: does confidence mean something", self._reliability())
        yield from self._rows("Confidently wrong", score.confidently_wrong)
        yield from self._rows("Wrong", score.wrong)
        yield from self._rows("Abstained", score.abstentions)
        yield from self._rows("Broken drills (not counted)", score.broken)
        for drill, reason in self.skipped.items():
            yield Text(f"skipped {drill}: {reason}")
        if score.runs:
            yield Text()
            yield from (Text(line) for line in self.summary())
        yield Text(self.conditions, style="dim")

    def summary(self) -> list[str]:
        """The figures that are compared with the goals, one line each."""
        score = self.score
        return [
            f"state right        {_share(score.state_right, score.runs)}",
            f"cause right        {_share(score.right, score.runs)}",
            f"macro-F1           {score.macro_f1:.3f} over {len(score.causes)} causes",
            f"culprit right      {_share(score.culprit_right, score.culprit_total)}",
            f"false hung         {_share(len(score.false_hung), score.runs)}",
            f"confidently wrong  {_share(len(score.confidently_wrong), score.runs)}",
            f"abstained          {_share(len(score.abstentions), score.runs)}",
            f"calibration error  {score.calibration_error:.3f}",
        ]

    def _causes(self) -> Table:
        table = _table("cause", "right", "precision", "recall", "F1")
        for cause in self.score.causes:
            precision = "-" if cause.precision is None else f"{cause.precision:.2f}"
            table.add_row(
                cause.cause, f"{cause.right}/{cause.total}", precision, f"{cause.recall:.2f}", f"{cause.f1:.2f}"
            )
        return table

    def _confusion(self) -> Table:
        confusion = self.score.confusion
        given = [state for state in STATES if any(state in row for row in confusion.values())]
        table = _table("", *given)
        for expected in STATES:
            if expected in confusion:
                table.add_row(expected, *(str(confusion[expected].get(state, 0) or ".") for state in given))
        return table

    def _times(self) -> Table:
        table = _table("patience", "runs", "p50", "p95", "max")
        for line in sorted(self.score.times, key=lambda line: PATIENCE_CLASSES.index(line.patience)):
            figures = (line.p50_seconds, line.p95_seconds, line.max_seconds)
            table.add_row(line.patience, str(line.count), *(f"{seconds:.1f}" for seconds in figures))
        return table

    def _reliability(self) -> Table:
        table = _table("confidence", "verdicts", "at least", "right")
        for line in self.score.reliability:
            table.add_row(line.level, str(line.count), f"{line.confidence:.2f}", f"{line.accuracy:.3f}")
        return table

    def _rows(self, title: str, rows: tuple[Row, ...]) -> Iterator[RenderableType]:
        if rows:
            yield Text(f"\n{title}: {len(rows)}", style="bold")
        for row in rows:
            yield Text(f"  {row_line(row)}\n    {row.session}")


def row_line(row: Row) -> str:
    """One row in one line: what it was, what it was called, and how sure."""
    what = f"{row.drill} ({row.strength} #{row.repeat}): {row.expected_state}/{row.expected_label}"
    if row.broken is not None:
        return f"{what}: {row.broken}"
    if row.fault is not None:
        return f"{what}: {row.fault}"
    return f"{what}, said {row.state}/{row.cause or '-'} ({confidence_word(row.confidence or 0.0)}): {row.summary}"


def _titled(title: str, table: Table) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    yield table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.1%})" if whole else "0/0"
