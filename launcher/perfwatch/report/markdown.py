"""The report as Markdown, to paste into a chat or an issue: short, and nothing from the job can become a link or a heading."""

import re
from collections.abc import Iterable, Iterator

from perfwatch.report.captured import captured
from perfwatch.report.gpu_idle import off_gpu
from perfwatch.report.headroom import headroom_lines
from perfwatch.report.sentences import (
    culprit_text,
    culprit_title,
    culprits_of,
    evidence_of,
    footer,
    links_of,
    lived_text,
    not_seen,
)
from perfwatch.report.stacks import FoldedGroup, folded
from perfwatch.report.story import Story, about, conditions, crashes, probes
from perfwatch.report.waiting import waiting_lines
from perfwatch.text import clean, duration
from perfwatch.verdict import confidence_word

MOST_LINKS, MOST_GROUPS, MOST_FRAMES, MOST_EVENTS, MOST_LINES = 12, 6, 12, 12, 40
LONGEST = 400
# What Markdown, or the HTML within it, would take for its own: no more, for not every chat takes the backslash away again.
_SPECIAL = re.compile(r"[\\`*\[\]<|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#+>-]|(?:(?<=^\d)|(?<=^\d\d))[.)](?=\s|$)")


def as_markdown(story: Story) -> str:
    """The whole report; ends with a line end."""
    return "\n".join(_lines(story)) + "\n"


def _lines(story: Story) -> Iterator[str]:
    verdict = story.verdict
    cause = f" {_code(verdict.cause)}" if verdict.cause else ""
    cause += f" ({_code(verdict.sub_cause)}, retry: {escaped(verdict.retry or 'unknown')})" if verdict.sub_cause else ""
    silent = "" if verdict.silent_seconds is None else f", for {duration(verdict.silent_seconds)}"
    silent = f", {story.lasted}" if story.lasted else silent
    yield f"**{escaped(verdict.state.upper())}**{cause} — confidence: {confidence_word(verdict.confidence)}{silent}"
    yield ""
    yield f"> {escaped(verdict.summary)}"
    yield from ("", escaped("; ".join(f"{name} {value}" for name, value in about(story.recording))))
    if story.lived is not None:
        yield from ("", escaped(lived_text(story.lived)))
    yield from _list(
        culprit_title(verdict).capitalize(), [escaped(culprit_text(one)) for one in culprits_of(verdict.culprits)]
    )
    if verdict.wait_chain:
        yield from ("", "**Blocked on**", "")
        for depth, text in links_of(verdict.wait_chain)[:MOST_LINKS]:
            yield f"{'  ' * min(depth, MOST_LINKS)}- {escaped(text)}"
    if verdict.evidence:
        yield ""
        yield from _table(
            ("source", "of", "observation", "observed", "expected"),
            ((one.witness, of, one.claim, one.observed, one.expected) for one, of in evidence_of(verdict.evidence)),
        )
    yield from _list("Ruled out", [f"{_code(one.cause)}: {escaped(one.refuted_by)}" for one in verdict.alternatives])
    yield from _list("Not observed", [escaped(one) for one in not_seen(verdict.missing)])
    yield from _list("Next", [_code(one) for one in verdict.next])
    waited = off_gpu(story.case)
    if waited is not None:
        lines = [f"{line.share_of_idle:.0%} {_code(line.text)}" for line in waiting_lines(waited)]
        watched = f"{waited.idle_share:.0%} of the {duration(waited.measured_seconds)} that stacks were sampled in"
        yield from _list(f"What the GPU waits for ({watched})", lines)
    yield from _list("What would make it faster", [escaped(line) for line in headroom_lines(story)])
    for crash in crashes(story)[:MOST_GROUPS]:
        yield from ("", f"**Traceback of {escaped(crash.heading)}**", "", "```text")
        if len(crash.lines) > MOST_LINES:
            yield f"... {len(crash.lines) - MOST_LINES} lines before these are on the page and in the recording"
        yield from map(_fenced, crash.lines[-MOST_LINES:])
        yield "```"
    yield from _stacks(folded(story))
    for one in captured(story):
        yield from _list(f"Capture after {duration(one.at)}", [escaped(line) for line in (one.text, *one.lines)])
    events = story.recording.events[-MOST_EVENTS:]
    if events:
        yield ""
        yield from _table(("after", "what", "text"), ((duration(one.at), one.kind, one.text) for one in events))
    yield ""
    yield from _table(("measured", "on"), conditions(story))
    dearest = ", ".join(f"{one.probe} {duration(one.cpu_seconds, 3)}" for one in probes(story)[:3])
    yield ""
    yield escaped(footer(verdict)) + (f" (most: {escaped(dearest)})" if dearest else "")


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield from ("", f"**{title}**", "", *(f"- {line}" for line in lines))


def _stacks(groups: list[FoldedGroup]) -> Iterator[str]:
    if not groups:
        return
    yield from ("", "**Stacks**", "", "```text")
    for group in groups[:MOST_GROUPS]:
        yield _fenced(group.heading)
        for text, own in group.frames[:MOST_FRAMES]:
            yield f"  {'*' if own else ' '} {_fenced(text)}"
        if len(group.frames) > MOST_FRAMES:
            yield f"    and {len(group.frames) - MOST_FRAMES} more"
    if len(groups) > MOST_GROUPS:
        yield f"and {len(groups) - MOST_GROUPS} more stacks"
    yield "```"


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"


def escaped(text: str) -> str:
    """One line that shows exactly these characters."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", _cut(text)).replace("@", "@\N{WORD JOINER}")


def _code(text: str) -> str:
    """Within backticks, of which the text has none then."""
    return f"`{_fenced(text)}`"


def _fenced(text: str) -> str:
    return _cut(text).replace("`", "'")


def _cut(text: str) -> str:
    line = clean(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
