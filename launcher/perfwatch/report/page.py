"""The report as one HTML page: complete in itself, opened without a network, everything from the job escaped.

jinja2 escapes whatever is put into the text and into the inline SVG. The page's own policy forbids it to load anything, and to
run any script but the one that it was made with.
"""

import base64
import hashlib
from functools import partial
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from perfwatch import __version__
from perfwatch.report.captured import Captured, captured
from perfwatch.report.gpu_idle import OffGpu, off_gpu
from perfwatch.report.headroom import MOST_SHARES, of_running, share_name, times_text
from perfwatch.report.lanes import lanes_of
from perfwatch.report.sentences import culprits_of, evidence_of, fixed_in, footer, links_of, lived_text
from perfwatch.report.stacks import folded
from perfwatch.report.story import Crash, Story, about, conditions, crashes, efficiency, probes, threads
from perfwatch.report.timeline import timeline
from perfwatch.report.waiting import flame, waiting_lines, waiting_sum
from perfwatch.text import clean, duration
from perfwatch.verdict import confidence_word

LONGEST_CELL = 2000  # a hostile name may have ten thousand characters
MOST_THREADS = 600
MOST_EVENTS = 400
MOST_CRASHES = 16


def as_page(story: Story) -> str:
    """The whole document."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "line": _line,
        "duration": duration,
        "percent": _percent,
        "confidence": confidence_word,
        "fixed_in": fixed_in,
        "times": times_text,
        "share_name": share_name,
    }
    all_threads, lanes = threads(story), lanes_of(story.whole.history)
    events = story.recording.events
    waited = off_gpu(story.case)
    crashed = crashes(story)
    captures, headroom = captured(story), of_running(story)
    told = headroom is not None and bool(headroom.shares or headroom.levers)
    script = _template("page.js")
    return environment.get_template("page.html").render(
        story=story,
        verdict=story.verdict,
        lived=None if story.lived is None else lived_text(story.lived),
        culprits=culprits_of(story.verdict.culprits),
        chain=links_of(story.verdict.wait_chain),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_template("page.css")),
        timeline=timeline(story, lanes),
        notes=sorted({lane.note for lane in lanes if lane.note}),
        absent=_absent(crashed, captures, waited, told),
        headroom=headroom if told else None,
        most_shares=MOST_SHARES,
        efficiency=efficiency(story),
        waiting=None if waited is None else waiting_lines(waited),
        waiting_sum="" if waited is None else waiting_sum(waited),
        flame=[] if waited is None or not waiting_lines(waited) else flame(waited),
        captures=captures,
        crashes=crashed[:MOST_CRASHES],
        more_crashes=max(0, len(crashed) - MOST_CRASHES),
        folded=folded(story),
        threads=all_threads[:MOST_THREADS],
        more_threads=max(0, len(all_threads) - MOST_THREADS),
        probes=probes(story),
        conditions=conditions(story),
        about=about(story.recording),
        evidence=evidence_of(story.verdict.evidence),
        footer=footer(story.verdict),
        events=events[-MOST_EVENTS:],
        more_events=max(0, len(events) - MOST_EVENTS),
        clock=partial(_clock, story.recording.session.created),
        version=__version__,
    )


def _absent(crashed: list[Crash], captures: list[Captured], waiting: OffGpu | None, headroom: bool) -> list[str]:
    """Sections that this recording does not have."""
    has = {
        "tracebacks": bool(crashed),
        "captures": bool(captures),
        "waiting-section": waiting is not None,
        "headroom": headroom,
    }
    return [name for name, there in has.items() if not there]


def _template(name: str) -> str:
    return (files("perfwatch.report") / "page" / name).read_text(encoding="utf-8")


def _line(text: Any) -> str:
    """One harmless line, cut to a length that is read."""
    line = clean(str(text))
    return line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL]}… ({len(line):,} characters)"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _clock(created: float, at: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(created + at, timezone.utc).strftime("%H:%M:%S")
