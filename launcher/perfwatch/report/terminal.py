"""A verdict on one screen, to be understood at three in the morning: what, who, why, how sure, what next.

``VerdictReport`` renders itself; the console decides width, colour and encoding. Every text from the job is cleaned
before it is shown, and nothing is shown that the verdict does not hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfwatch.report.sentences import (
    also_lines,
    culprit_title,
    culprits_of,
    evidence_of,
    fixed_in,
    footer,
    links_of,
    not_seen,
)
from perfwatch.text import clean, duration
from perfwatch.verdict import (
    Verdict,
    confidence_word,
)

STYLES = {
    "hung": "bold red",
    "gone": "bold red",
    "slow": "bold yellow",
    "inconclusive": "bold magenta",
    "busy": "bold cyan",
    "healthy": "bold green",
}
WIDEST_WITNESS = 16
# One screen has 24 lines on the oldest terminal: the rest is in --json.
MOST_CULPRITS, MOST_LINKS, MOST_EVIDENCE, MOST_ALTERNATIVES, MOST_MISSING, MOST_NEXT = 4, 8, 6, 2, 3, 3


@dataclass(frozen=True)
class VerdictReport:
    """One verdict, ready to be printed: ``console.print(VerdictReport(verdict))``."""

    verdict: Verdict
    lasted: str = ""  # in a recording: from when until when, in place of how long it had lasted when it was judged

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts from top to bottom; an empty part is left out."""
        verdict = self.verdict
        yield self._headline()
        yield Text(clean(verdict.summary))
        if verdict.suspect:
            yield Text(self._countdown(), style="magenta")
        yield from self._culprits()
        yield from self._chain(options.ascii_only)
        yield from self._evidence()
        yield from _listed(
            "ruled out", [f"{one.cause}: {one.refuted_by}" for one in verdict.alternatives], MOST_ALTERNATIVES
        )
        yield from _listed("also", also_lines(verdict), MOST_ALTERNATIVES)
        yield from _listed("not observed", not_seen(verdict.missing), MOST_MISSING)
        yield from _listed("retry", [verdict.retry] if verdict.retry else [], 1)
        yield from _listed("next", list(verdict.next), MOST_NEXT, style="bold")
        yield Text(footer(verdict), style="dim")

    def _headline(self) -> Text:
        verdict = self.verdict
        line = Text()
        line.append(verdict.state.upper(), STYLES.get(verdict.state, "bold"))
        if verdict.cause:
            line.append(f"  {clean(verdict.cause)}", "bold")
        if verdict.sub_cause:
            line.append(f" ({clean(verdict.sub_cause)})", "bold")
        if verdict.confidence > 0.0:
            line.append(f"  (confidence: {confidence_word(verdict.confidence)})")
        if self.lasted:
            line.append(f"  {self.lasted}")
        elif verdict.silent_seconds is not None:
            line.append(f"  for {duration(verdict.silent_seconds)}")
        if where := fixed_in(verdict):
            line.append(f"  (usually fixed in: {clean(where)})", "dim")
        return line

    def _countdown(self) -> str:
        suspect = self.verdict.suspect
        assert suspect is not None
        if suspect.decides_in_seconds <= 0:
            return (
                f"{suspect.state} ({clean(suspect.cause)}) would be the verdict if more could be seen; silent for "
                f"{duration(suspect.silent_seconds)}"
            )
        unless = "nothing moves" if suspect.state == "hung" else "nothing changes"
        return (
            f"{suspect.state} ({clean(suspect.cause)}) if {unless} for another "
            f"{duration(suspect.decides_in_seconds)}; silent for {duration(suspect.silent_seconds)} so far"
        )

    def _culprits(self) -> Iterator[RenderableType]:
        blamed = culprits_of(self.verdict.culprits)
        title = culprit_title(self.verdict)
        for number, one in enumerate(blamed[:MOST_CULPRITS]):
            yield _row(title if number == 0 else "", Text(clean(one.who)))
            if one.where:
                yield _row("", Text(clean(one.where)))
            if one.source:
                yield _row("", Padding(Text(clean(one.source), style="bold"), (0, 0, 0, 4)))
        if len(blamed) > MOST_CULPRITS:
            yield _row("", _more(len(blamed) - MOST_CULPRITS))

    def _chain(self, ascii_only: bool) -> Iterator[RenderableType]:
        chain = links_of(self.verdict.wait_chain)
        arrow = "`-> " if ascii_only else "└▸ "
        for number, (depth, text) in enumerate(chain[:MOST_LINKS]):
            line: RenderableType = Text(clean(text))
            if depth:
                indented = Table.grid()
                indented.add_column()
                indented.add_column(overflow="fold")
                indented.add_row("   " * (min(depth, MOST_LINKS) - 1) + arrow, line)
                line = indented
            yield _row("blocked on" if number == 0 else "", line)
        if len(chain) > MOST_LINKS:
            yield _row("", _more(len(chain) - MOST_LINKS))

    def _evidence(self) -> Iterator[RenderableType]:
        evidence = evidence_of(self.verdict.evidence)
        width = max((len(one.witness) for one, _ in evidence[:MOST_EVIDENCE]), default=0)
        for number, (one, entity) in enumerate(evidence[:MOST_EVIDENCE]):
            line = Table.grid(padding=(0, 2, 0, 0))
            line.add_column(width=min(width, WIDEST_WITNESS), overflow="fold")
            line.add_column(overflow="fold")
            line.add_row(Text(clean(one.witness)), Text(clean(f"{entity}: {one.claim}: {one.observed}")))
            yield _row("evidence" if number == 0 else "", line)
        if len(evidence) > MOST_EVIDENCE:
            yield _row("", _more(len(evidence) - MOST_EVIDENCE))


def _row(heading: str, line: RenderableType) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(style="dim", width=12)
    table.add_column(overflow="fold", ratio=1)
    table.add_row(heading, line)
    return table


def _more(count: int) -> Text:
    return Text(f"and {count} more in --json", style="dim")


def _listed(heading: str, lines: list[str], most: int, style: str = "") -> Iterator[RenderableType]:
    for number, line in enumerate(lines[:most]):
        yield _row(heading if number == 0 else "", Text(clean(line), style=style))
    if len(lines) > most:
        yield _row("", _more(len(lines) - most))
