"""Recorded cases: a session folder trimmed to what triage reads, beside what must be said about it (``expected.json``).

``scripts/record_case.py`` makes them from drills, an incident can be dropped in as it is, ``scripts/accept`` writes
``expected.json`` anew, and the suite judges them all again at every change of a rule.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from perfwatch.probes.readings import ProbeCall
from perfwatch.recording import Record, Recording, load
from perfwatch.redaction import redact_tree
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.verdict import Verdict

EXPECTED = "expected.json"


class Expected(msgspec.Struct, frozen=True):
    """As much of a verdict as must stay: words may improve, the judgement may not change unseen."""

    state: str
    cause: str | None
    culprit: str | None = None  # the function of the first culprit's frame

    @classmethod
    def of(cls, verdict: Verdict) -> "Expected":
        """What this verdict comes down to."""
        first = verdict.culprits[0] if verdict.culprits else None
        return cls(verdict.state, verdict.cause, (first.frame or "").split(" (")[0] or None if first else None)


def cases(root: Path) -> list[Path]:
    """Every case below ``root``, which holds ``CAUSE/{fires,lookalike}/NAME`` folders, in order."""
    return sorted(path.parent for path in root.glob("*/*/*/session.json"))


def said_about(case: Path) -> Expected:
    """Judge a case at its end."""
    return Expected.of(diagnose(load(case)))


def expected_of(case: Path) -> Expected:
    """What was accepted for a case. Raises FileNotFoundError for a new one."""
    return msgspec.json.decode((case / EXPECTED).read_bytes(), type=Expected)


def accept(case: Path, expected: Expected) -> None:
    """Write down what must be said about a case."""
    (case / EXPECTED).write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=2) + b"\n")


def trimmed(recording: Recording, until: float) -> tuple[Record, ...]:
    """Leave out what came after ``until`` and the looks that went well: only a failed look is evidence."""
    return tuple(record for record in recording.until(until).records if not _went_well(record))


def store(
    case: Path, recording: Recording, records: Iterable[Record], conditions: Mapping[str, str], names: Mapping[str, str]
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
        text = text.replace(old, new)
    return text + "\n"


def _went_well(record: Record) -> bool:
    return isinstance(record.reading, ProbeCall) and record.reading.outcome == "ok"
