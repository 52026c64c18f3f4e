"""What was said and what happened, as marks on the time axis: verdicts as stretches of time, all else as points."""

from dataclasses import dataclass

from perfwatch.report.story import Story
from perfwatch.text import clean

ROWS = ("verdict", "captures", "signals", "notes")
SAID = ("verdict", "suspicion", "retraction")
LONGEST_TEXT = 300
MOST_MARKS = 2000
ROW_OF = {**dict.fromkeys(SAID, "verdict"), "signal": "signals", "outcome": "signals"}


@dataclass(frozen=True)
class Stretch:
    """From ``begun`` to ``ended`` (seconds since the session began) this is what was said last."""

    begun: float
    ended: float
    state: str
    text: str


@dataclass(frozen=True)
class Mark:
    """Something at a moment; ``seconds``: for how long, 0 for a point."""

    at: float
    row: str
    text: str
    state: str = ""
    seconds: float = 0.0


def states(story: Story) -> list[Stretch]:
    """What was said, each until the next was: as recorded at the time, and at the end the verdict of this report."""
    events = [event for event in story.recording.events if event.kind in SAID]
    said = [(event.at, _state(event.kind, event.verdict), event.text) for event in events]
    said.append((story.at, story.verdict.state, story.verdict.summary))
    said.sort(key=lambda one: one[0])
    ends = [one[0] for one in said[1:]] + [max(story.recording.end, story.at)]
    return [
        Stretch(begun, ended, state, shortened(f"{state}: {text}"))
        for (begun, state, text), ended in zip(said, ends, strict=True)
    ]


def marks(story: Story) -> list[Mark]:
    """Every event, verdicts as the moment when they were told, and the newest ones where there are too many."""
    verdict = story.verdict
    found = [Mark(story.at, ROWS[0], shortened(f"this report: {verdict.state}: {verdict.summary}"), verdict.state)]
    for event in story.recording.events:
        row = "captures" if event.kind.startswith("capture") else ROW_OF.get(event.kind, "notes")
        lasted = event.facts.get("total_seconds", 0.0)  # of a capture, which is told when it is over
        seconds = float(lasted) if isinstance(lasted, int | float) and lasted > 0 else 0.0
        text = shortened(f"{event.kind}: {event.text}")
        found.append(Mark(max(0.0, event.at - seconds), row, text, _state(event.kind, event.verdict), seconds))
    return [found[0], *found[1:][-MOST_MARKS:]]


def shortened(text: str) -> str:
    """One harmless line that fits into a tooltip."""
    line = clean(text)
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def _state(kind: str, verdict: object) -> str:
    state = getattr(verdict, "state", "")
    return state or ("inconclusive" if kind == "suspicion" else "")
