"""Recorded cases: a session folder trimmed to what triage reads, beside the expected verdict (``expected.json``).

``scripts/record_case.py`` makes them from drills. The session of an incident can be added unchanged. ``scripts/accept`` writes
``expected.json`` again, and the suite judges all cases at every change of a rule.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from perfwatch.recording.recording import Record, Recording, load
from perfwatch.recording.redaction import redact_tree
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import ObserverCost, Verdict
from perfwatch_probes.readings import (
    Affinity,
    Cgroup,
    GpuActivity,
    GpuSample,
    Host,
    Process,
    ProcessEnded,
    Steps,
    Traceback,
)

EXPECTED = "expected.json"
# Errors are kept where the verdict does not rest on them too: a look-alike may be about just that.
CONTEXT = (Affinity, Cgroup, Host, Process, ProcessEnded, Steps, Traceback)
GPU_EVERY_SECONDS = (0.95, 0.45)
THINNED = 4  # of a series that cannot go, every so many-th reading may do
ENTITY_FIELDS = ("pid", "tid", "fd", "path", "file", "line", "mount", "device", "interface", "probe", "kind", "uuid")


class Expected(msgspec.Struct, frozen=True):
    """As much of a verdict as must stay: words may improve, the judgement may not change unseen."""

    at: float  # judged so many seconds after the session began
    state: str
    cause: str | None
    culprit: str | None = None  # the function of the first culprit's frame

    @classmethod
    def of(cls, recording: Recording, at: float) -> "Expected":
        """What the verdict at that moment comes down to."""
        verdict = diagnose(recording.until(at), at)
        return cls(at, verdict.state, verdict.cause, blamed(verdict))


def blamed(verdict: Verdict) -> str | None:
    """The function of the first culprit's frame."""
    first = verdict.culprits[0] if verdict.culprits else None
    return (first.frame or "").split(" (")[0] or None if first else None


def cases(root: Path) -> list[Path]:
    """Every case below ``root``, which holds ``CAUSE/{fires,lookalike}/NAME`` folders, in order."""
    return sorted(path.parent for path in root.glob("*/*/*/session.json"))


def said_about(case: Path) -> Expected:
    """Judge a case: at the moment that was accepted, a new one at its end."""
    recording = load(case)
    return Expected.of(recording, expected_of(case).at if (case / EXPECTED).exists() else recording.end)


def expected_of(case: Path) -> Expected:
    """What was accepted for a case. Raises FileNotFoundError for a new one."""
    return msgspec.json.decode((case / EXPECTED).read_bytes(), type=Expected)


def accept(case: Path, expected: Expected) -> None:
    """Write down what must be said about a case."""
    (case / EXPECTED).write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=2) + b"\n")


def trimmed(recording: Recording, at: float) -> tuple[Record, ...]:
    """Leave out what the verdict ``at`` that moment does not rest on: whole threads and disks, then repetitions.

    The verdict must stay the same to the letter, evidence and all. Readings that say where it was stay, thinned. Of the ten
    looks a second at a GPU so many stay as bring the same verdict about, if not the same figures.
    """
    whole = _calmer(recording.until(at), at)
    records, truth = whole.records, _verdict_text(whole, at)
    for entity in dict.fromkeys(map(_entity, records)):
        mine = [number for number, record in enumerate(records) if _entity(record) == entity]
        nothing: set[int] = set()
        for kept in (nothing, {mine[0], mine[-1]}, {mine[0], *mine[::-THINNED]}):
            if kept is nothing and entity[0] in CONTEXT:
                continue
            left = tuple(record for number, record in enumerate(records) if number in kept or number not in mine)
            if _verdict_text(replace(whole, records=left), at) == truth:
                records = left
                break
    return records


def _calmer(recording: Recording, at: float) -> Recording:
    """With fewer looks at the cards, as long as state, cause and confidence stay."""

    def said(one: Recording) -> tuple[str, str | None, float]:
        verdict = diagnose(one, at)
        return verdict.state, verdict.cause, verdict.confidence

    for every in GPU_EVERY_SECONDS:
        kept: list[Record] = []
        last: dict[tuple[object, ...], float] = {}
        for record in recording.records:
            if isinstance(record.reading, GpuSample | GpuActivity):
                if record.at - last.get(_entity(record), -every) < every:
                    continue
                last[_entity(record)] = record.at
            kept.append(record)
        thinner = replace(recording, records=tuple(kept))
        if said(thinner) == said(recording):
            return thinner
    return recording


def store(
    case: Path,
    recording: Recording,
    records: Iterable[Record],
    conditions: Mapping[str, str | float],
    names: Mapping[str, str],
) -> None:
    """Write a case folder: the session, with ``conditions`` as provenance, and one line per record.

    ``names`` are replaced in every text (paths and host names of the machine that recorded).
    """
    session = msgspec.structs.replace(recording.session, conditions={**recording.session.conditions, **conditions})
    case.mkdir(parents=True, exist_ok=True)
    for old in case.glob("*.json*"):
        old.unlink()
    lines = [_line(record, names) for record in records]
    (case / "session.json").write_text(_line(session, names))
    (case / "readings.jsonl").write_text("".join(lines))
    events = [_line(event, names) for event in recording.events if event.verdict is None]
    (case / "events.jsonl").write_text("".join(events))


def _line(entry: object, names: Mapping[str, str]) -> str:
    text = msgspec.json.encode(redact_tree(msgspec.to_builtins(entry))).decode()
    for old, new in names.items():
        if "/" in old:
            text = text.replace(old, new)
        elif old:  # a host may be called "vm", and so are three letters of "nvml"
            text = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text)
    return text + "\n"


def _entity(record: Record) -> tuple[object, ...]:
    return (type(record.reading), *(getattr(record.reading, name, None) for name in ENTITY_FIELDS))


def _verdict_text(recording: Recording, at: float) -> bytes:
    verdict = diagnose(recording, at)
    return msgspec.json.encode(msgspec.structs.replace(verdict, missing=(), findings=(), observer_cost=ObserverCost()))
