"""What ``perfwatch fleet`` prints: the verdict, the stacks of all ranks folded, and the hosts; as JSON one object."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.fleet.asking import Outcome
from perfwatch.fleet.merge.hosts import HostReport
from perfwatch.report.folding import FoldedStacks
from perfwatch.report.json import as_object
from perfwatch.report.terminal import VerdictReport
from perfwatch.text import clean, duration, json_text, listed
from perfwatch.triage.job import rank_ranges
from perfwatch_probes.readings import Frame

SCHEMA = "perfwatch.fleet/2"
MOST_LINES = 8
SAYS = {
    "no_job": "no process of the job",
    "silent": "no answer",
    "failed": "could not look",
    "garbled": "answered nonsense",
    "double": "asked twice",
}


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All processes that show one stack, innermost frame first."""

    role: str
    ranks: str
    count: int
    hosts: tuple[str, ...]
    frames: tuple[Frame, ...]


class FleetJson(msgspec.Struct, frozen=True, kw_only=True):
    """The object of ``perfwatch fleet --json``."""

    schema: str = SCHEMA
    job: str
    verdict: dict[str, Any]  # as of ``perfwatch.report.json``
    hosts: tuple[HostReport, ...]
    stacks: tuple[StackGroup, ...]


@dataclass(frozen=True)
class FleetReport:
    """One look at a whole job, ready to be printed."""

    outcome: Outcome

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the verdict, the stacks, the hosts."""
        yield VerdictReport(self.outcome.verdict)
        yield Text("stacks", style="dim")
        yield FoldedStacks(self.outcome.folded)
        yield Text("hosts", style="dim")
        for line in host_lines(self.outcome.reports):
            yield Text(f"  {clean(line)}")


def host_lines(reports: tuple[HostReport, ...]) -> list[str]:
    """Hosts that are alike on one line: first those that answered, then what the others did instead."""
    answered = [report for report in reports if report.state == "answered"]
    lines = []
    if answered:
        ranks = rank_ranges(rank for report in answered for rank in report.ranks)
        lines.append(f"{listed(report.host for report in answered)}: answered, with rank {ranks}")
    alike: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        if report.state != "answered":
            alike.setdefault((SAYS.get(report.state, report.state), report.reason), []).append(report.host)
    lines += [f"{listed(hosts)}: {says}" + (f": {why}" if why else "") for (says, why), hosts in alike.items()]
    for report in reports:
        if report.skewed and report.skew_seconds is not None:
            which = "ahead of" if report.skew_seconds > 0 else "behind"
            lines.append(
                f"{report.host}: its clock is {duration(abs(report.skew_seconds))} {which} ours; ages are compared"
            )
    if len(lines) > MOST_LINES:
        return [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more in --json"]
    return lines


def as_json(outcome: Outcome) -> str:
    """One object on one line, without a line end."""
    stacks = tuple(
        StackGroup(
            role=group.role,
            ranks=rank_ranges(group.ranks),
            count=len(group.places),
            hosts=tuple(dict.fromkeys(place.host for place in group.places)),
            frames=group.frames,
        )
        for group in outcome.folded.groups
    )
    whole = FleetJson(job=outcome.job, verdict=as_object(outcome.verdict), hosts=outcome.reports, stacks=stacks)
    return json_text(whole)
