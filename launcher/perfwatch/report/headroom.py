"""The headroom on a terminal: the shares, the levers, what is missing. Everything is in ``--json``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.headroom.advice import Advice, Headroom, Part
from perfwatch.headroom.session import GOES_ON, of_session
from perfwatch.recording import archive
from perfwatch.recording.recording import load
from perfwatch.report.console import console
from perfwatch.report.moment import last_living_moment
from perfwatch.report.story import Story, tell, tell_whole
from perfwatch.report.terminal import MOST_NEXT, STYLES
from perfwatch.text import clean, duration
from perfwatch.verdict import confidence_word

MOST_SHARES = 10


def of_folder(folder: Path, trace: Path | None = None, refused: str = "") -> Headroom:
    """The headroom of a session folder or an archive of one, as long as the job lived.

    trace, refused: as of ``of_session``. Raises SessionUnreadable.
    """
    with archive.opened(folder) as opened:
        recording = load(opened)
        story = tell_whole(opened, recording)
        if story.lived is not None and story.lived.state in GOES_ON:
            story = tell(opened, recording, last_living_moment(recording))
        return of_story(story, trace, refused)


def of_story(story: Story, trace: Path | None = None, refused: str = "") -> Headroom:
    """The headroom at the moment that a report tells."""
    return of_session(story.folder, story.recording, story.case, story.verdict, trace, refused)


def of_running(story: Story) -> Headroom | None:
    """The headroom of a job that goes on; None of another."""
    return of_story(story) if story.verdict.state in GOES_ON else None


def headroom_lines(story: Story) -> list[str]:
    """The levers of a job that goes on, a line each; none where nothing speaks for any."""
    found = of_running(story)
    return [
        f"{one.title}: {one.change}; a step {times_text(one.times[0])} to {times_text(one.times[1])} as fast; {one.evidence}"
        for one in (() if found is None else found.levers)
    ]


def print_headroom(folder: Path | None, stream: IO[str]) -> None:
    """What would make the run of a session faster, as far as it was recorded: after a gate on MFU that failed."""
    if folder is not None:
        console(stream).print(HeadroomReport(of_folder(folder)))


@dataclass(frozen=True)
class HeadroomReport:
    """What matters of it."""

    headroom: Headroom

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the parts from top to bottom; an empty part is left out."""
        found = self.headroom
        yield from self._slow()
        step = f"a step of {duration(found.step_seconds, 3)}" if found.step_seconds else "a step"
        card = f" on {clean(found.card)}" if found.card else ""
        yield Text(f"{step}{card}, from {found.seen_from}: {clean(found.source)}", style="bold", overflow="fold")
        yield from self._shares()
        if found.roofs:
            yield Text(
                "products reach "
                + ", ".join(_roof(one.family, one.type, one.tflops, one.of_peak) for one in found.roofs[:3])
            )
        if not found.levers and found.judged:
            beside = "beside that, " if found.slow is not None else ""
            yield Text(f"{beside}no lever of those that perfwatch knows has evidence in this run that is worth 3 %")
        for number, lever in enumerate(found.levers, 1):
            yield from self._lever(number, lever)
        if len(found.levers) > 1:
            yield Text("each gain is for that change alone: they do not add up", style="dim")
        if found.levers:
            yield Text(f"to check: {found.levers[0].check}", style="dim")
        for text in found.next:
            yield Text(f"each of its kernels against its roof: {clean(text)}", style="dim", overflow="fold")
        for text in found.missing:
            yield Text(f"missing: {clean(text)}", style="yellow")

    def _slow(self) -> Iterator[RenderableType]:
        """The cause of a slow run comes first: no lever helps as long as it takes the time."""
        if (slow := self.headroom.slow) is None:
            return
        sure = confidence_word(slow.confidence)
        yield Text.assemble(("SLOW", STYLES["slow"]), (f"  {slow.cause}", "bold"), f"  (confidence: {sure})")
        yield Text(clean(slow.summary), overflow="fold")
        if slow.times is not None:
            low, high = map(times_text, slow.times)
            yield Text(f"   fixing it: a step {low} to {high} as fast")
        for text in slow.next[:MOST_NEXT]:
            yield Text(f"   next: {clean(text)}", overflow="fold")

    def _shares(self) -> Iterator[RenderableType]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        shown = self.headroom.shares[:MOST_SHARES]
        for one in shown:
            table.add_row(share_name(one), f"{one.share:.1%}", duration(one.seconds, 3) if one.seconds else "")
        rest = sum(one.share for one in self.headroom.shares[MOST_SHARES:])
        if rest > 0:
            table.add_row("the rest", f"{rest:.1%}", "")
        if shown:
            yield table

    def _lever(self, number: int, lever: Advice) -> Iterator[RenderableType]:
        low, high = lever.times
        yield Text.assemble(
            (f"{number}. {lever.title}", "bold"), f"  a step {times_text(low)} to {times_text(high)} as fast"
        )
        where = f" ({clean(lever.where)})" if lever.where and lever.where not in lever.evidence else ""
        yield Text(f"   seen: {clean(lever.evidence)}{where}", overflow="fold")
        yield Text(f"   change: {lever.change}", overflow="fold")
        yield Text(f"   cost: {lever.cost}", overflow="fold")
        others = {one.lever for one in self.headroom.levers} & set(lever.excludes)
        if others:
            yield Text(f"   instead of, not beside: {', '.join(sorted(others))}", overflow="fold")
        if lever.unsure:
            yield Text(f"   unsure: {lever.unsure}", style="yellow", overflow="fold")


def share_name(one: Part) -> str:
    """A part of a step, in words."""
    if not one.family:
        return one.what
    return f"{one.family}, {one.part}" if one.what == "kernels" else f"{one.family}, {one.what}"


def _roof(family: str, kind: str, tflops: float, of_peak: float | None) -> str:
    share = f" ({of_peak:.0%} of its peak)" if of_peak is not None else ""
    return f"{tflops:,.0f} TFLOP/s{share} in {kind or 'an unknown type'} ({family})"


def times_text(value: float) -> str:
    """1.25x: how many times as fast."""
    return f"{value:.2f}x"
