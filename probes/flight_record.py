"""What a flight-recorder dump of torch says: one rank's collectives, group by group. Pure; ``flight_recorder`` brings dumps.

Formats: pickle (what ranks write, with Python frames) and JSON (torch's debug server, without). Version 2.x, torch 2.4 to
2.13; read in torch's FlightRecorder.hpp. gloo's records never say "completed": of them ``retired`` tells that a call is over.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perfwatch.probes.pickled import plain
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Frame, Operation, RecordedGroup

KNOWN_MAJOR = "2"
NEWEST_OPERATIONS = 24  # of each group, and so many on both sides of the last one that was completed:
AROUND_COMPLETED = 8  # ranks are compared by sequence number, and one that goes on asynchronously may be far ahead
MOST_GROUPS = 64
MOST_FRAMES = 6
MOST_SIZE_CHARACTERS = 200
_LIBRARY = re.compile(r"(/(site|dist)-packages|\.whl)/torch/|/lib(64)?/python\d|^<")


def parse(content: bytes, pid: int, rank: int, origin: str, written_ago_seconds: float = 0.0) -> list[RecordedGroup]:
    """One reading per process group of a dump. Raises Unavailable for everything that is not a dump of a version we know."""
    dump = _plain(content)
    if not isinstance(dump, Mapping) or not isinstance(dump.get("entries", []), list):
        raise Unavailable("it is no flight-recorder dump")
    version = str(dump.get("version", ""))
    if version.split(".")[0] != KNOWN_MAJOR:
        raise Unavailable(
            f"its format is version {version[:20] or 'unknown'}; versions {KNOWN_MAJOR}.x are understood",
            "torchfrtrace of the job's own torch reads it",
        )
    entries = [entry for entry in dump.get("entries", []) if isinstance(entry, Mapping)]
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_group.setdefault(_group(entry)[0], []).append(entry)
    config = dump.get("pg_config")
    config = config if isinstance(config, Mapping) else {}
    status = dump.get("pg_status")
    status = status if isinstance(status, Mapping) else {}
    names = dict.fromkeys([*by_group, *(str(one.get("name", key)) for key, one in config.items() if _maps(one))])
    found = []
    described: Mapping[str, Any]
    for name in list(names)[:MOST_GROUPS]:
        mine = by_group.get(name, [])
        described = next((one for key, one in config.items() if _maps(one) and str(one.get("name", key)) == name), {})
        where = _number(mine[-1].get("pg_id")) if mine else None
        counts = status.get(str(where), status.get(where, status.get(name, {}) if where is None else {}))
        counts = counts if isinstance(counts, Mapping) else {}
        operations = tuple(
            _operation(entry) for entry in _telling(mine, _number(counts.get("last_completed_collective")))
        )
        found.append(
            RecordedGroup(
                pid=pid,
                rank=rank,
                group=name[:100],
                description=str(described.get("desc", "") or (_group(mine[-1])[1] if mine else ""))[:100],
                members=tuple(int(one) for one in re.findall(r"\d+", str(described.get("ranks", ""))[:200_000])),
                enqueued=_last(counts, "last_enqueued_collective", operations, done=False),
                completed=_last(counts, "last_completed_collective", operations, done=True),
                operations=operations,
                origin=origin,
                version=version[:20],
                written_ago_seconds=round(written_ago_seconds, 3),
            )
        )
    return found


def _plain(content: bytes) -> Any:
    if content.lstrip()[:1] != b"{":
        return plain(content)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"it is torn or no JSON: {error}") from None


def _telling(entries: list[Mapping[str, Any]], completed: int | None) -> Iterator[Mapping[str, Any]]:
    """The newest, and those around the last one that was completed."""
    newest = len(entries) - NEWEST_OPERATIONS
    for index, entry in enumerate(entries):
        sequence = _number(entry.get("collective_seq_id"))
        near = completed is not None and sequence is not None and abs(sequence - completed) <= AROUND_COMPLETED
        if index >= newest or near:
            yield entry


def _maps(value: Any) -> bool:
    return isinstance(value, Mapping)


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description; version 2.0 had the name alone."""
    named = entry.get("process_group")
    if isinstance(named, tuple | list) and named:
        return str(named[0]), str(named[1]) if len(named) > 1 else ""
    return str(entry.get("pg_name", entry.get("pg_id", ""))), ""


def _last(counts: Mapping[str, Any], name: str, operations: tuple[Operation, ...], done: bool) -> int | None:
    """By the group's own status; by the newest entries where a version has none. -1 there means that there was none yet."""
    told = _number(counts.get(name))
    if told is not None:
        return max(0, told)
    known = [one.sequence for one in operations if not one.point_to_point and (not done or one.state == "completed")]
    return max(known, default=None)


def _operation(entry: Mapping[str, Any]) -> Operation:
    point_to_point = entry.get("is_p2p") is True
    inputs, input_elements = _sizes(entry.get("input_sizes"))
    outputs, output_elements = _sizes(entry.get("output_sizes"))
    kinds = entry.get("input_dtypes") or entry.get("output_dtypes")
    retired = entry.get("retired") is True
    return Operation(
        sequence=_number(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id")) or 0,
        order=_number(entry.get("record_id")) or 0,
        name=str(entry.get("profiling_name", ""))[:100].partition(":")[2] or str(entry.get("profiling_name", ""))[:100],
        point_to_point=point_to_point,
        input_sizes=inputs,
        output_sizes=outputs,
        input_elements=input_elements,
        output_elements=output_elements,
        dtypes=",".join(dict.fromkeys(str(kind)[:20] for kind in kinds[:64])) if isinstance(kinds, list) else "",
        state="completed" if retired else str(entry.get("state", ""))[:20],
        frames=tuple(_frames(entry.get("frames")))[:MOST_FRAMES],
    )


def _sizes(value: Any) -> tuple[str, int]:
    """``16x512,8`` and the number of elements in all tensors of a call."""
    texts: list[str] = []
    elements = 0
    for shape in value if isinstance(value, list | tuple) else ():
        if not isinstance(shape, list | tuple) or not all(isinstance(one, int) for one in shape[:16]):
            continue
        count = 1
        for one in shape[:16]:
            count *= one
        elements += count
        if len(texts) < MOST_SIZE_CHARACTERS // 2:
            texts.append("x".join(str(one)[:20] for one in shape[:16]))
    return ",".join(texts)[:MOST_SIZE_CHARACTERS], min(abs(elements), 2**62)


def _frames(value: Any) -> Iterator[Frame]:
    """The program's own, innermost first, as torch records them."""
    for frame in value[:256] if isinstance(value, list | tuple) else ():
        if not isinstance(frame, Mapping):
            continue
        file = str(frame.get("filename", ""))[:400]
        if not _LIBRARY.search(file) and file.endswith(".py"):
            yield Frame(str(frame.get("name", ""))[:200], file, _number(frame.get("line")) or 0)


def _number(value: Any) -> int | None:
    """pg_status holds numbers as texts in some versions."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else None
