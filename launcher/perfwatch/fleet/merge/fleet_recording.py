"""A look at many hosts as a recording: what was merged, and what became of each host, so that it can be judged again anywhere.

The records are those of all hosts, with the numbers that ``merging`` gave to their processes. What no record says (the names
of the hosts in their order, each host's own verdict, those that did not answer) is in events at the beginning: one ``fleet``,
and one ``host`` for each host that was asked.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from perfwatch.fleet.merge.hosts import HostReport
from perfwatch.fleet.merge.job_wide import judge_hosts
from perfwatch.fleet.merge.merging import Merged, Part, Translation
from perfwatch.fleet.merge.snapshot import JobView
from perfwatch.jobs.identity import Identity
from perfwatch.recording.recording import Event, Recording
from perfwatch.recording.session import Session
from perfwatch.verdict import Verdict

MODE = "fleet"


class _Whole(msgspec.Struct, frozen=True):
    """Facts of the event ``fleet``."""

    complete: bool
    counted: bool
    present: dict[int, tuple[str, ...]]


class _Host(msgspec.Struct, frozen=True):
    """Facts of an event ``host``; ``end`` and ``master`` only of one that answered."""

    report: HostReport
    end: float = 0.0
    master: str = ""


@dataclass(frozen=True)
class Said:
    """One event to be recorded, at the beginning."""

    kind: str
    text: str
    verdict: Verdict | None
    facts: dict[str, Any]


def said(merged: Merged, parts: list[Part], reports: list[HostReport], complete: bool) -> list[Said]:
    """What has to be recorded beside the records."""
    views = {part.host: part.view for part in parts}
    whole = _Whole(complete, merged.counted, merged.present)
    found = [Said("fleet", f"{len(reports)} hosts were asked", None, msgspec.to_builtins(whole, str_keys=True))]
    for report in reports:
        view = views.get(report.host)
        facts = _Host(report, view.end, view.identity.master) if view is not None else _Host(report)
        text = f"{report.host}: {report.state}" + (f": {report.reason}" if report.reason else "")
        found.append(Said("host", text, view.verdict if view is not None else None, msgspec.to_builtins(facts)))
    return found


def judge_recorded(recording: Recording, at: float) -> Verdict:
    """The verdict for the whole job, as it was known ``at`` seconds after the first look began.

    Raises msgspec.ValidationError for a recording that does not say who was asked: it is none of ours.
    """
    whole = msgspec.convert(_facts(recording.events, "fleet")[0][1], _Whole, strict=False)
    hosts = [(event, msgspec.convert(facts, _Host)) for event, facts in _facts(recording.events, "host")]
    answered = [(event, host) for event, host in hosts if event.verdict is not None]
    parts = [Part(host.report.host, _view(recording.session, event, host)) for event, host in answered]
    merged = Merged(
        session=recording.session,
        records=tuple(record for record in recording.records if record.at <= at),
        end=at,
        translation=Translation(tuple(part.host for part in parts)),
        present=whole.present,
        addresses={host.report.host: host.master for _, host in answered if host.master},
        counted=whole.counted,
    )
    return judge_hosts(merged, parts, [host.report for _, host in hosts], whole.complete)[0]


def _facts(events: tuple[Event, ...], kind: str) -> list[tuple[Event, dict[str, Any]]]:
    found = [(event, event.facts) for event in events if event.kind == kind]
    if not found:
        raise msgspec.ValidationError(f"the recording has no event {kind!r}")
    return found


def _view(session: Session, event: Event, host: _Host) -> JobView:
    assert event.verdict is not None
    return JobView(
        identity=Identity(master=host.master),
        session=session,
        end=host.end,
        verdict=event.verdict,
        ranks=host.report.ranks,
        left_out=host.report.left_out,
        folder=host.report.folder,
    )
