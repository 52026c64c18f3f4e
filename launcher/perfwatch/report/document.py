"""The report as one JSON object, schema ``perfwatch.report/2``: the verdict, the events, and the tables of the page."""

from perfwatch.report.captured import captured
from perfwatch.report.gpu_idle import off_gpu
from perfwatch.report.headroom import of_running
from perfwatch.report.json import as_object
from perfwatch.report.lanes import fitted, lanes_of
from perfwatch.report.stacks import folded
from perfwatch.report.story import Story, conditions, probes, threads
from perfwatch.report.waiting import waiting_lines
from perfwatch.text import json_text

SCHEMA = "perfwatch.report/2"


def as_document(story: Story) -> str:
    """One line of JSON; times are seconds since ``session.created``, and NaN, where a line is broken, is null."""
    waited = off_gpu(story.case)
    document = {
        "schema": SCHEMA,
        "session": story.recording.session,
        "judged_at": story.at,
        "ended_at": story.recording.end,
        "verdict": as_object(story.verdict),
        "lived": None if story.lived is None else as_object(story.lived),
        "events": [
            {"at": one.at, "kind": one.kind, "text": one.text, "facts": one.facts} for one in story.recording.events
        ],
        "timeline": [fitted(lane) for lane in lanes_of(story.whole.history)],
        "stacks": folded(story),
        "threads": threads(story),
        "captures": captured(story),
        "headroom": of_running(story),
        "gpu_waits": None if waited is None else {"idle_share": waited.idle_share, "lines": waiting_lines(waited)},
        "probes": probes(story),
        "conditions": dict(conditions(story)),
    }
    return json_text(document) + "\n"
