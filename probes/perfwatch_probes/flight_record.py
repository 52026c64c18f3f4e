"""What a flight-recorder dump of torch says: one rank's collectives, group by group. Pure; ``flight_recorder`` brings dumps.

Formats: pickle (what ranks write, with Python frames) and JSON (torch's debug server and TorchComms, without). Version 2.x, torch 2.4
to 2.14 and TorchComms; read in torch's FlightRecorder.hpp and TorchComms' FlightRecorder.cpp. Version 1.x, torch 2.2 and 2.3, and
the bare list of torch 2.1: one number for every kind of call, groups by a number of the process' own, no counts (torch's TraceUtils.h
of those versions). gloo's records never say "completed": of them ``retired`` tells that a call is over.

A call that torch makes of several (an all_gather of unequal sizes, a batch of sends) is recorded piece by piece under one number,
and ends with an entry of its own, which alone learns that all is over (``flight_recorder/components/utils.py`` in torch's wheel).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perfwatch_probes.foreign import number, text
from perfwatch_probes.pickled import plain
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import BATCH, Frame, Operation, RecordedGroup

KNOWN_MAJORS = ("1", "2")
NEWEST_OPERATIONS = 24  # of each group, and so many on both sides of the last one that was completed:
AROUND_COMPLETED = 8  # ranks are compared by sequence number, and one that goes on asynchronously may be far ahead
MOST_GROUPS = 64
MOST_FRAMES = 6
OVER = "completed"
WHAT = (
    "profiling_name",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
)  # of an entry: what was called
MOST_SIZE_CHARACTERS = 200
MOST_NAME_CHARACTERS = 100
MOST_RANKS_CHARACTERS, MOST_DIGITS = 200_000, 10  # of the ranks of a group, and of one rank
_LIBRARY = re.compile(r"(/(site|dist)-packages|\.whl)/torch/|/lib(64)?/python\d|^<")


def parse(content: bytes, pid: int, rank: int, origin: str, written_ago_seconds: float = 0.0) -> list[RecordedGroup]:
    """One reading per process group of a dump. Raises Unavailable for everything that is not a dump of a version we know."""
    dump = _plain(content)
    if isinstance(dump, list) and any(isinstance(one, Mapping) and "seq_id" in one for one in dump[:1]):
        dump = {"version": "1.0", "entries": dump}
    if not isinstance(dump, Mapping) or not isinstance(dump.get("entries", []), list):
        raise Unavailable("it is no flight-recorder dump")
    version = text(dump.get("version"), 20)
    if version.split(".")[0] not in KNOWN_MAJORS:
        raise Unavailable(
            f"its format is version {version or 'unknown'}; versions {' and '.join(f'{one}.x' for one in KNOWN_MAJORS)} are understood",
            "torchfrtrace of the job's own torch reads it",
        )
    if version.startswith("1."):
        dump = _renewed(dump)
    entries = [entry for entry in dump.get("entries", []) if isinstance(entry, Mapping)]
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_group.setdefault(_group(entry)[0], []).append(entry)
    config = dump.get("pg_config")
    config = config if isinstance(config, Mapping) else {}
    status = dump.get("pg_status")
    status = status if isinstance(status, Mapping) else {}
    configured: dict[str, Mapping[str, Any]] = {}
    for key, one in config.items():
        if isinstance(one, Mapping):
            configured.setdefault(_name(one.get("name", key)), one)
    names = dict.fromkeys([*by_group, *configured])
    local_ids = _local_ids(entries, configured, status)
    found = []
    for name in list(names)[:MOST_GROUPS]:
        mine = _joined(by_group.get(name, []))
        described = configured.get(name, {})
        where = local_ids.get(name)
        counts = status.get(str(where), status.get(where, {})) if where is not None else {}
        counts = counts if isinstance(counts, Mapping) else {}
        if any(entry.get("is_p2p") is True for entry in mine):
            counts = _collectives(mine)
        operations = tuple(
            _operation(entry) for entry in _telling(mine, _number(counts.get("last_completed_collective")))
        )
        found.append(
            RecordedGroup(
                pid=pid,
                rank=rank,
                group=name,
                description=_name(described.get("desc")) or (_group(mine[-1])[1] if mine else ""),
                members=_members(described.get("ranks")),
                enqueued=_last(counts, "last_enqueued_collective", operations, done=False),
                completed=_last(counts, "last_completed_collective", operations, done=True),
                operations=operations,
                origin=origin,
                version=version,
                written_ago_seconds=round(written_ago_seconds, 3),
            )
        )
    return found


def _renewed(dump: Mapping[str, Any]) -> Mapping[str, Any]:
    """A dump of version 1 in the form of version 2.

    Groups are known by their ranks, and those of the same ranks by their order: the numbers of a process are not those of another.
    """
    entries = [entry for entry in dump.get("entries", []) if isinstance(entry, Mapping)]
    told = dump.get("pg_config")
    ranks = {_number(key): _members(one) for key, one in told.items()} if isinstance(told, Mapping) else {}
    names: dict[int | None, str] = {}
    alike: dict[tuple[int, ...], int] = {}
    for key in sorted(
        {*ranks, *(_number(entry.get("pg_id")) for entry in entries)}, key=lambda key: (key is None, key or 0)
    ):
        members = ranks.get(key, ())
        alike[members] = alike.get(members, 0) + 1
        called = f"of ranks {_shortly(members)}" if members else f"{key}"
        names[key] = called + (f", {alike[members]}" if members and alike[members] > 1 else "")
    config = {names[key]: {"name": names[key], "desc": "", "ranks": list(members)} for key, members in ranks.items()}
    made = []
    newest: dict[str, Any] = {}  # the number of the newest collective, which in version 2 each send bears as well
    for entry in entries:
        name, sequence = names[_number(entry.get("pg_id"))], entry.get("seq_id")
        called = _called(entry)
        sends = called.startswith(("send", "recv")) or called == BATCH
        if not sends:
            newest[name] = sequence
        numbers = {"collective_seq_id": newest.get(name, 0), "p2p_seq_id": sequence, "is_p2p": sends}
        made.append({**entry, "process_group": [name, ""], **numbers})
    return {"version": dump.get("version"), "entries": made, "pg_config": config}


def _shortly(members: tuple[int, ...]) -> str:
    """``0 to 7``, or the numbers, as far as they fit."""
    whole = len(members) > 2 and members == tuple(range(members[0], members[0] + len(members)))
    return f"{members[0]} to {members[-1]}" if whole else ", ".join(map(str, members))[: MOST_NAME_CHARACTERS - 20]


def _local_ids(
    entries: list[Mapping[str, Any]], configured: Mapping[str, Any], status: Mapping[Any, Any]
) -> dict[str, int]:
    """By name of a group, the number under which ``pg_status`` has its counts: the process' own, which the other ranks do not share.

    Entries bear both. A group without entries (a dump of active calls alone) has the number at its place in the order of creation: names
    that are numbers count all groups of the job, the local ones those of this process. (ProcessGroupNCCL.cpp: local_id_; read in dumps of
    16 ranks with 13 groups each, torch 2.9.)
    """
    told = {_group(entry)[0]: where for entry in entries if (where := _number(entry.get("pg_id"))) is not None}
    names = sorted(number for name in configured if (number := _number(name)) is not None)
    numbers = sorted(number for key in status if (number := _number(key)) is not None)
    if len(names) != len(configured) or len(numbers) != len(status) or len(names) != len(numbers):
        return told
    placed = {str(name): where for name, where in zip(names, numbers, strict=True)}
    return told | placed if all(placed.get(name) == where for name, where in told.items()) else told


def _plain(content: bytes) -> Any:
    if content.lstrip()[:1] != b"{":
        return plain(content)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"it is torn or no JSON: {error}") from None
    except MemoryError:
        raise Unavailable("it cannot be read safely: MemoryError") from None


def _joined(entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the pieces of a collective, whose end stands for them; the end of a batch of sends is no collective, whatever it says.

    An end that bears no name and no sizes of its own has those of its only piece (recorded on two H100, torch 2.11: three tensors that
    are reduced as one are ``allreduce_coalesced`` and then ``coalesced``, of one number).
    """
    found: list[Mapping[str, Any]] = []
    for entry in entries:
        called = _called(entry)
        if called == BATCH and found and found[-1].get("is_p2p") is True:
            entry = {**entry, "is_p2p": True}
        elif called.endswith(BATCH) and entry.get("is_p2p") is not True:
            pieces = []
            while found and _is_piece(found[-1], entry):
                pieces.append(found.pop())
            if called == BATCH and len(pieces) == 1:
                entry = {**entry, **{key: pieces[0][key] for key in WHAT if key in pieces[0]}}
        found.append(entry)
    return found


def _is_piece(entry: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """True if a collective bears the number of the one that ends it."""
    sequence = _number(end.get("collective_seq_id"))
    alike = sequence is not None and _number(entry.get("collective_seq_id")) == sequence
    return alike and entry.get("is_p2p") is not True


def _called(entry: Mapping[str, Any]) -> str:
    """``all_reduce``, of ``nccl:all_reduce``."""
    named = _name(entry.get("profiling_name"))
    return named.partition(":")[2] or named


def _collectives(entries: list[Mapping[str, Any]]) -> dict[str, int]:
    """How far the collectives of a group have come in which ranks also send: its status is of the newest call of either kind.

    Each entry bears the number of the newest collective. (Recorded on two H200: a group without any has ``last_enqueued_collective``
    722, of as many sends. ProcessGroupNCCL.cpp: workEnqueue.)
    """
    reached = max((_number(entry.get("collective_seq_id")) or 0 for entry in entries), default=0)
    waits = (entry for entry in entries if entry.get("is_p2p") is not True and not _over(entry))
    first = min((_number(entry.get("collective_seq_id")) or 0 for entry in waits), default=reached + 1)
    return {"last_enqueued_collective": reached, "last_completed_collective": first - 1}


def _telling(entries: list[Mapping[str, Any]], completed: int | None) -> Iterator[Mapping[str, Any]]:
    """The newest, and those around the last one that was completed."""
    newest = len(entries) - NEWEST_OPERATIONS
    for index, entry in enumerate(entries):
        sequence = _number(entry.get("collective_seq_id"))
        near = completed is not None and sequence is not None and abs(sequence - completed) <= AROUND_COMPLETED
        if index >= newest or near:
            yield entry


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description; version 2.0 had the name alone."""
    named = entry.get("process_group")
    if isinstance(named, tuple | list) and named:
        return _name(named[0]), _name(named[1]) if len(named) > 1 else ""
    return _name(entry.get("pg_name", entry.get("pg_id"))), ""


def _name(value: Any) -> str:
    return text(value, MOST_NAME_CHARACTERS)


def _members(ranks: Any) -> tuple[int, ...]:
    """``[0, 1]``, which torch writes as text."""
    if isinstance(ranks, list | tuple):
        return tuple(rank for one in ranks if (rank := number(one)) is not None)
    return tuple(int(one) for one in re.findall(r"\d+", text(ranks, MOST_RANKS_CHARACTERS)) if len(one) < MOST_DIGITS)


def _last(counts: Mapping[str, Any], name: str, operations: tuple[Operation, ...], done: bool) -> int | None:
    """By the group's own status; by the newest entries where a version has none. -1 there means that there was none yet."""
    told = _number(counts.get(name))
    if told is not None:
        return max(0, told)
    known = [one.sequence for one in operations if not one.point_to_point and (not done or one.state == OVER)]
    return max(known, default=None)


def _over(entry: Mapping[str, Any]) -> bool:
    return entry.get("retired") is True or entry.get("state") == OVER


def _operation(entry: Mapping[str, Any]) -> Operation:
    point_to_point = entry.get("is_p2p") is True
    inputs, input_elements = _sizes(entry.get("input_sizes"))
    outputs, output_elements = _sizes(entry.get("output_sizes"))
    kinds = entry.get("input_dtypes") or entry.get("output_dtypes")
    return Operation(
        sequence=_number(entry.get("p2p_seq_id" if point_to_point else "collective_seq_id")) or 0,
        order=_number(entry.get("record_id")) or 0,
        name=_called(entry),
        point_to_point=point_to_point,
        input_sizes=inputs,
        output_sizes=outputs,
        input_elements=input_elements,
        output_elements=output_elements,
        dtypes=",".join(dict.fromkeys(text(kind, 20) for kind in kinds[:64])) if isinstance(kinds, list) else "",
        state=OVER if _over(entry) else text(entry.get("state"), 20),
        frames=tuple(_frames(entry.get("frames")))[:MOST_FRAMES],
    )


def _sizes(value: Any) -> tuple[str, int]:
    """``16x512,8`` and the number of elements in all tensors of a call."""
    texts: list[str] = []
    elements = 0
    for shape in value if isinstance(value, list | tuple) else ():
        if not isinstance(shape, list | tuple) or any(number(one) is None for one in shape[:16]):
            continue
        count = 1
        for one in shape[:16]:
            count *= one
        elements += count
        if len(texts) < MOST_SIZE_CHARACTERS // 2:
            texts.append("x".join(str(one) for one in shape[:16]))
    return ",".join(texts)[:MOST_SIZE_CHARACTERS], min(abs(elements), 2**62)


def _frames(value: Any) -> Iterator[Frame]:
    """The program's own, innermost first, as torch records them."""
    for frame in value[:256] if isinstance(value, list | tuple) else ():
        if not isinstance(frame, Mapping):
            continue
        file = text(frame.get("filename"), 400)
        if not _LIBRARY.search(file) and file.endswith(".py"):
            yield Frame(text(frame.get("name"), 200), file, _number(frame.get("line")) or 0)


def _number(value: Any) -> int | None:
    """pg_status holds numbers as texts in some versions."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return number(value)
