"""A verdict on one screen, to be understood at three in the morning: what, who, why, how sure, what next.

``VerdictReport`` renders itself; the console decides width, colour and encoding. Every text from the job is cleaned
before it is shown, and nothing is shown that the verdict does not hold.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfwatch.text import clean, duration
from perfwatch.verdict import IT_RUNS, Culprit, Link, Missing, Verdict, confidence_word, doing

_NUMBER = re.compile(r"\d+")
STYLES = {
    "hung": "bold red",
    "gone": "bold red",
    "slow": "bold yellow",
    "inconclusive": "bold magenta",
    "busy": "bold cyan",
    "healthy": "bold green",
}
BLAMELESS = ("busy", "healthy", "inconclusive")  # nobody did anything wrong, or it is not known
# One screen has 24 lines on the oldest terminal: the rest is in --json.
MOST_CULPRITS, MOST_LINKS, MOST_EVIDENCE, MOST_ALTERNATIVES, MOST_MISSING, MOST_NEXT = 4, 8, 6, 2, 3, 3


@dataclass(frozen=True)
class VerdictReport:
    """One verdict, ready to be printed: ``console.print(VerdictReport(verdict))``."""

    verdict: Verdict

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts from top to bottom; an empty part is left out."""
        verdict = self.verdict
        yield self._headline()
        yield Text(clean(verdict.summary))
        if verdict.suspect:
            yield Text(self._countdown(), style="magenta")
        yield from _listed(
            "where" if verdict.state in BLAMELESS else "to blame",
            [culprit_text(one) for one in verdict.culprits],
            MOST_CULPRITS,
        )
        yield from self._chain(options.ascii_only)
        yield from self._evidence()
        yield from _listed(
            "rather than", [f"{one.cause}: {one.refuted_by}" for one in verdict.alternatives], MOST_ALTERNATIVES
        )
        yield from _listed(
            "not seen",
            not_seen(verdict.missing),
            MOST_MISSING,
        )
        yield from _listed("retry", [verdict.retry] if verdict.retry else [], 1)
        yield from _listed("next", list(verdict.next), MOST_NEXT, style="bold")
        yield Text(self._footer(), style="dim")

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
        if verdict.silent_seconds is not None:
            line.append(f"  for {duration(verdict.silent_seconds)}")
        if verdict.owner != "unknown":
            line.append(f"  ({clean(verdict.owner.replace('_', ' '))})", "dim")
        return line

    def _countdown(self) -> str:
        suspect = self.verdict.suspect
        assert suspect is not None
        if suspect.decides_in_seconds <= 0:
            return (
                f"{suspect.state} ({clean(suspect.cause)}) would be the verdict if more could be seen; silent for "
                f"{duration(suspect.silent_seconds)}"
            )
        return (
            f"{suspect.state} ({clean(suspect.cause)}) if nothing moves for another "
            f"{duration(suspect.decides_in_seconds)}; silent for {duration(suspect.silent_seconds)} so far"
        )

    def _chain(self, ascii_only: bool) -> Iterator[RenderableType]:
        chain = self.verdict.wait_chain
        if not chain:
            return
        yield Text("waits", style="dim")
        arrow = "`-> " if ascii_only else "└▸ "
        for link in chain[:MOST_LINKS]:
            line = Table.grid()
            line.add_row(Text(arrow if link.depth else ""), Text(link_text(link)))
            yield Padding(line, (0, 0, 0, 2 + 3 * max(0, min(link.depth, MOST_LINKS) - 1)))
        if len(chain) > MOST_LINKS:
            yield Text(f"  and {len(chain) - MOST_LINKS} more in --json", style="dim")

    def _evidence(self) -> Iterator[RenderableType]:
        evidence = self.verdict.evidence
        if not evidence:
            return
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim", pad_edge=False)
        for heading in ("evidence", "of", "shows"):
            table.add_column(heading, overflow="fold", no_wrap=False)
        for one in evidence[:MOST_EVIDENCE]:
            shows = f"{clean(one.claim)}: {clean(one.observed)}"
            if one.expected:
                shows += f" (healthy: {clean(one.expected)})"
            table.add_row(Text(clean(one.witness)), Text(clean(one.entity)), Text(shows))
        yield table
        if len(evidence) > MOST_EVIDENCE:
            yield Text(f"  and {len(evidence) - MOST_EVIDENCE} more in --json", style="dim")

    def _footer(self) -> str:
        verdict, cost = self.verdict, self.verdict.observer_cost
        ranks = f"{verdict.coverage.ranks_seen} of {verdict.coverage.world_size or '?'} ranks seen"
        step = "" if verdict.last_step is None else f", step {verdict.last_step}"
        paused = f", job paused {cost.target_paused_ms:.0f} ms" if cost.target_paused_ms else ", no pause of the job"
        return (
            f"{clean(verdict.at)}, {ranks}{step}; looking cost {cost.cpu_seconds:.2f} s of CPU, "
            f"{cost.stack_dumps} stack dumps{paused}"
        )


def _listed(heading: str, lines: list[str], most: int, style: str = "") -> Iterator[RenderableType]:
    if not lines:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", width=11)
    table.add_column(overflow="fold")
    for number, line in enumerate(lines[:most]):
        table.add_row(heading if number == 0 else "", Text(clean(line), style=style))
    if len(lines) > most:
        table.add_row("", Text(f"and {len(lines) - most} more in --json", style="dim"))
    yield table


def not_seen(missing: Iterable[Missing]) -> list[str]:
    """What was not seen and why, stacks first: without them most verdicts are worth little. What differs in a number alone is told once."""
    alike: dict[tuple[str, str], list[Missing]] = {}
    for one in sorted(missing, key=lambda one: one.witness != "stacks"):
        alike.setdefault((one.witness, _NUMBER.sub("", one.reason)), []).append(one)
    lines = []
    for first, *others in alike.values():
        more = f" (and {len(others)} more like it)" if others else ""
        lines.append(f"{first.witness}: {first.reason}{more}" + (f" -> {first.advice}" if first.advice else ""))
    return lines


def culprit_text(one: Culprit) -> str:
    """Who is to blame, in words; not cleaned."""
    words = [] if one.rank is None else [f"rank {one.rank}"]
    program = _program(one)
    if program:
        words.append(f"process {one.worker_pid} ({program}) of pid {one.pid}")
    elif one.worker_pid:
        words.append(f"worker {one.worker_pid} of pid {one.pid}")
    elif one.pid:  # of a rank that was seen nowhere there is none
        words.append(f"pid {one.pid}")
    if one.gpu is not None:
        words.append(f"gpu {one.gpu}")
    if one.host:
        words.append(f"on {one.host}")
    if one.thread and one.thread != "MainThread" and not program:
        words.append(f"thread {one.thread}")
    return " ".join([", ".join(words)] * bool(words) + [f"in {one.frame}"] * bool(one.frame))


def _program(one: Culprit) -> str | None:
    """The name of a child that runs no Python, as far as was seen: its first thread bears that of the program."""
    first = one.worker_pid is not None and one.tid == one.worker_pid and one.frame is None
    return one.thread if first and one.thread != "MainThread" else None


def lived_text(verdict: Verdict) -> str:
    """What the last verdict on the living job was, beside one on its end; not cleaned."""
    after = "" if verdict.timeline.decided is None else f" (after {duration(verdict.timeline.decided)})"
    said = f"{verdict.state} {verdict.cause}" if verdict.cause else verdict.state
    return f"while it lived{after}: {said}, confidence {confidence_word(verdict.confidence)}: {verdict.summary}"


def link_text(one: Link) -> str:
    """One step of the wait chain, in words."""
    pid = f" (pid {one.pid})" if one.pid else ""  # of a rank that only its files tell of there is none
    who = f"pid {one.pid}" if one.rank is None else f"rank {one.rank}{pid}"
    who += f" on {clean(one.host)}" if one.host else ""
    frame = f" in {clean(one.frame)}" if one.frame else ""
    rests = one.silent_seconds is not None and one.waits_for != IT_RUNS
    silent = f", silent for {duration(one.silent_seconds or 0.0)}" if rests else ""
    return f"{who}{frame} {doing(clean(one.waits_for))}{silent}"
