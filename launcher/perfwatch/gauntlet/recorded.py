"""Recorded cases: one compressed file per session, and one text file of expected verdicts per cause.

``CAUSE/{fires,lookalike}/NAME.jsonl.gz`` is a session: the first line is ``session.json`` with the provenance in its
conditions (machine, versions, how it was made, whether it was trimmed), then events, then readings in order of time.
``CAUSE/expected.toml`` has a table per case with the verdict that must be given. Code names a case by its path without the
suffix.

``scripts/record_case.py`` records cases from drills, ``scripts/case add`` takes the session of an incident, ``scripts/accept``
rewrites the expected verdicts, and the test suite judges every case again when a rule changes.
"""

import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec

from perfwatch.recording.recording import Event, Record, Recording
from perfwatch.recording.redaction import redact_tree
from perfwatch.recording.session import Session
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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUFFIX = ".jsonl.gz"
EXPECTED = "expected.toml"
EVENT = b'{"event":'  # how the line of an event begins
# Errors are kept where the verdict does not rest on them too: a look-alike may be about just that.
CONTEXT = (Affinity, Cgroup, Host, Process, ProcessEnded, Steps, Traceback)
GPU_EVERY_SECONDS = (0.95, 0.45)
THINNED = 4  # of a series that cannot go, every so many-th reading may do
ENTITY_FIELDS = ("pid", "tid", "fd", "path", "file", "line", "mount", "device", "interface", "probe", "kind", "uuid")


class Expected(msgspec.Struct, frozen=True):
    """As much of a verdict as must stay: words may improve, the judgement may not change unseen."""

    at: float  # judged so many seconds after the session began
    state: str
    cause: str | None = None
    culprit: str | None = None  # the function of the first culprit's frame

    @classmethod
    def of(cls, verdict: Verdict, at: float) -> "Expected":
        """What a verdict of that moment comes down to."""
        return cls(at, verdict.state, verdict.cause, blamed(verdict))


def blamed(verdict: Verdict) -> str | None:
    """The function of the first culprit's frame."""
    first = verdict.culprits[0] if verdict.culprits else None
    return (first.frame or "").split(" (")[0] or None if first else None


def case_file(case: Path) -> Path:
    """The compressed file of a case; a file is itself."""
    return case if case.is_file() else case.with_name(case.name + SUFFIX)


def cases(root: Path) -> list[Path]:
    """Every case below ``root``, which holds ``CAUSE/{fires,lookalike}/NAME.jsonl.gz``, in order."""
    return sorted(path.with_name(path.name.removesuffix(SUFFIX)) for path in root.glob(f"*/*/*{SUFFIX}"))


def case_text(case: Path) -> bytes:
    """The lines of a case: the session, events, readings."""
    return gzip.decompress(case_file(case).read_bytes())


def load_case(case: Path) -> Recording:
    """Load a case. Its file is our own: a line that cannot be decoded is an error, not damage to work around."""
    head, _, rest = case_text(case).partition(b"\n")
    events: list[Event] = []
    while rest.startswith(EVENT):
        line, _, rest = rest.partition(b"\n")
        events.append(_EVENT_LINE.decode(line).event)
    return Recording(_SESSION.decode(head), tuple(_RECORD.decode_lines(rest)), tuple(events))


def unpack(case: Path, folder: Path) -> Path:
    """Write a case as a session folder, which the commands of perfwatch can read."""
    head, _, rest = case_text(case).partition(b"\n")
    lines = rest.splitlines(keepends=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "session.json").write_bytes(head + b"\n")
    events = (line.removeprefix(EVENT).rstrip().removesuffix(b"}") for line in lines if line.startswith(EVENT))
    (folder / "events.jsonl").write_bytes(b"".join(event + b"\n" for event in events))
    (folder / "readings.jsonl").write_bytes(b"".join(line for line in lines if not line.startswith(EVENT)))
    return folder


def judge_again(case: Path) -> Expected:
    """Judge a case at the moment that was accepted, a new one at its end."""
    recording, before = load_case(case), accepted(case)
    return judged(recording, recording.end if before is None else before.at)


def judged(recording: Recording, at: float) -> Expected:
    """What the verdict at that moment comes down to."""
    return Expected.of(diagnose(recording.until(at), at), at)


def accepted(case: Path) -> Expected | None:
    """The verdict that was accepted for a case; None for a new one."""
    return _tables(case.parents[1] / EXPECTED).get(case.parent.name, {}).get(case.name)


def expected_of(case: Path) -> Expected:
    """The verdict that was accepted for a case. Raises LookupError for a new one."""
    expected = accepted(case)
    if expected is None:
        raise LookupError(f"{case.parents[1] / EXPECTED} has no verdict for {case.parent.name}/{case.name}")
    return expected


def accept(case: Path, expected: Expected) -> None:
    """Write down which verdict a case must get. Tables of cases that no longer exist are dropped."""
    file = case.parents[1] / EXPECTED
    tables = {kind: dict(named) for kind, named in _tables(file).items()}
    tables.setdefault(case.parent.name, {})[case.name] = expected
    kept = {
        (kind, name): one
        for kind, named in tables.items()
        for name, one in named.items()
        if case_file(file.parent / kind / name).exists()
    }
    file.write_text("\n".join(_table(kind, name, kept[kind, name]) for kind, name in sorted(kept)))
    _parsed.cache_clear()  # two writes may bear the same time


def _table(kind: str, name: str, expected: Expected) -> str:
    key = name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)
    values = {name: value for name, value in msgspec.structs.asdict(expected).items() if value is not None}
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
    return f"[{kind}.{key}]\n{''.join(lines)}"


def _tables(file: Path) -> Mapping[str, Mapping[str, Expected]]:
    """The expected verdicts of a cause by kind and name; empty where none was accepted so far."""
    try:
        return _parsed(file, file.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@lru_cache(maxsize=128)
def _parsed(file: Path, _written_ns: int) -> Mapping[str, Mapping[str, Expected]]:
    return msgspec.convert(tomllib.loads(file.read_text()), dict[str, dict[str, Expected]])


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
    conditions: Mapping[str, str | float | bool],
    names: Mapping[str, str],
) -> None:
    """Write a case: the session, with ``conditions`` as provenance, its events without verdicts, and the records.

    ``names`` are replaced in every text (paths and host names of the machine that recorded).
    """
    session = msgspec.structs.replace(recording.session, conditions={**recording.session.conditions, **conditions})
    events = (_line({"event": event}, names) for event in recording.events if event.verdict is None)
    write_case(case, [_line(session, names), *events, *(_line(record, names) for record in records)])


def write_case(case: Path, lines: Iterable[str]) -> None:
    """Compress the lines of a case, always to the same bytes. A file that holds them already is left as it is."""
    text, file = "".join(lines).encode(), case_file(case)
    if file.exists() and case_text(case) == text:  # another zlib may have written it
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as stream:
        stream.write(text)
    file.write_bytes(packed.getvalue())


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


class _EventLine(msgspec.Struct):
    event: Event


_SESSION = msgspec.json.Decoder(Session)
_EVENT_LINE = msgspec.json.Decoder(_EventLine)
_RECORD = msgspec.json.Decoder(Record)
