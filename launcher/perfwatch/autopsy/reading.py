"""One file, read in a child that may be killed: what it is, and the readings that it gives.

A file of a job is untrusted. Sizes, nesting and time are bounded, pickles know plain containers alone, and what a child says comes back
as data of a known type (``guest.Plain``).
"""

import gzip
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from perfwatch.autopsy import kinds
from perfwatch.autopsy.logs import read_log
from perfwatch.errors import TraceUnreadable
from perfwatch.traces import torch_trace
from perfwatch_probes import flight_record, nccl_report
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import MOST_RANKS, is_rank
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stacks import parse_dump

MOST_DUMP_BYTES = 64 * 2**20  # 2,000 entries with stacks are 1 MiB
MOST_TEXT_BYTES = 16 * 2**20  # of an answer or a stack that is read at once
MOST_LOG_BYTES = 16 * 2**30
MOST_UNPACKED = 200  # times its size that a compressed file may have
MOST_STACKS = 4096

MOST_FRAMES = 1024
_PROCESS = re.compile(r"^\s*Process (\d{1,9}): ")
_THREAD = re.compile(r'^Thread (?:(\d{1,20})|(0x[0-9A-Fa-f]{1,16})) \((?P<states>[^)]*)\)(?:: "(?P<name>.*)")?')
_STACK_FRAME = re.compile(r"^ {2,}(?P<function>.+?) \((?P<file>.+?)(?::(?P<line>\d{1,9}))?\)$")
_CARD = re.compile(r"^GPU ([0-9A-Fa-f:.]{8,20})\s*$")
_RANK_IN_NAME = re.compile(r"(?:rank|Rank|RANK)[_.-]?(\d{1,7})(?!\d)")
_NUMBER_AT_END = re.compile(r"(\d{1,7})(?:\.(?:pickle|pkl|json|txt|log|err|out|dump))*$")
_ATTEMPT = re.compile(r"/attempt_(\d{1,6})/")
_OF_TORCHRUN = re.compile(r"/attempt_\d+/(\d{1,7})/(?:stdout|stderr)(?:\.log)?$")


class Contents(msgspec.Struct, frozen=True):
    """What one file says. reason: why it says nothing, or not all; modified: unix time."""

    kind: str
    readings: tuple[r.ANY_READING, ...] = ()
    rank: int | None = None
    lines: int = 0
    size_bytes: int = 0
    modified: float = 0.0
    newest: float | None = None
    reason: str = ""
    advice: str = ""


def read_file(path: str, name: str, seconds: float) -> Contents:
    """A file, whatever it is. Runs in a guest. Raises OSError.

    Args:
        path: absolute.
        name: as it is to be shown.
        seconds: after which a log is read no further.
    """
    ends_at = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=1 << 18) as file:
        state = os.fstat(descriptor)
        told = read_stream(file, path, name, state.st_mtime, ends_at)
        return msgspec.structs.replace(told, size_bytes=state.st_size, modified=state.st_mtime)


def read_stream(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    """An open file that can seek."""
    head = file.read(kinds.HEAD_BYTES)
    kind = kinds.kind_of(head)
    file.seek(0)
    if kind == kinds.GZIP:
        size = max(1, os.fstat(file.fileno()).st_size) if hasattr(file, "fileno") else len(head)
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            limited = cast(BinaryIO, _Limited(unpacked, MOST_UNPACKED * size + 2**20))
            try:
                head = limited.read(kinds.HEAD_BYTES)
                kind = kinds.kind_of(head)
                if kind == kinds.GZIP:
                    return Contents(kind, reason="compressed more than once", advice="unpack it first")
                return _read(kind, cast(BinaryIO, _Joined(head, limited)), path, name, modified, ends_at)
            except (OSError, EOFError, ValueError) as error:
                return Contents(kind, reason=f"it does not unpack: {_said(error)}")
    return _read(kind, file, path, name, modified, ends_at)


def _read(kind: str, file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    reader = READERS.get(kind)
    if reader is None:
        what = "it is " + (kind if kind == "empty" else f"an {kind}" if kind[0] in "aeio" else f"a {kind}")
        return Contents(kind, reason=what, advice=kinds.REFUSED.get(kind, ""))
    try:
        return reader(file, path, name, modified, ends_at)
    except Unavailable as unavailable:
        return Contents(kind, reason=f"{kind}: {unavailable.reason}", advice=unavailable.advice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, MemoryError) as error:
        return Contents(kind, reason=f"{kind} that cannot be read: {_said(error)}")


def _dump(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    groups = flight_record.parse(_whole(file, MOST_DUMP_BYTES), 0, 0, "file")
    rank = rank_of_dump(groups, path)
    if rank is None:
        return Contents(kinds.DUMP, reason="flight-recorder dump of a rank that neither it nor its name tells")
    if not all(is_rank(member) for one in groups for member in one.members):
        return Contents(kinds.DUMP, reason=f"flight-recorder dump of ranks beyond {MOST_RANKS}, which no job has")
    readings = tuple(msgspec.structs.replace(one, rank=rank) for one in groups)
    return Contents(kinds.DUMP, readings, rank)


def rank_of_dump(groups: list[r.RecordedGroup], path: str) -> int | None:
    """Whose dump it is: the number in its name, if that rank is in every group; else the only rank that is."""
    members = [set(one.members) for one in groups if one.members]
    possible = set.intersection(*members) if members else None
    named = rank_in_name(path, whatever=True)
    if named is not None and (possible is None or named in possible):
        return named
    only = next(iter(possible)) if possible is not None and len(possible) == 1 else None
    return only if only is not None and only < MOST_RANKS else None


def rank_in_name(path: str, whatever: bool = False) -> int | None:
    """The rank that a path tells. whatever: a number at the end of the name will do."""
    base = path.rpartition("/")[2]
    match = (
        _RANK_IN_NAME.search(base) or _OF_TORCHRUN.search(path) or (_NUMBER_AT_END.search(base) if whatever else None)
    )
    number = None if match is None else int(match[1])
    return number if number is not None and number < MOST_RANKS else None


def _log(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    year = datetime.fromtimestamp(min(max(0.0, modified), 2.0**32), timezone.utc).year
    limited = cast(BinaryIO, _Limited(file, MOST_LOG_BYTES, silent=True))
    found = read_log(limited, name, year, rank_in_name(path), ends_at)
    of_attempt = _ATTEMPT.search(path)
    attempt = int(of_attempt[1]) if of_attempt else None
    return Contents(
        kinds.LOG,
        tuple(msgspec.structs.replace(one, attempt=attempt) for one in found.failures),
        rank_in_name(path),
        lines=found.lines,
        newest=found.newest,
        reason=f"log: {found.cut}" if found.cut else "",
    )


def _ras(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
    return Contents(kinds.RAS, tuple(nccl_report.parse(text)))


def _trace(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    rank = rank_in_name(path)
    try:
        return Contents(kinds.TRACE, (torch_trace.read(Path(path), 0, rank),), rank)
    except TraceUnreadable as error:
        return Contents(kinds.TRACE, reason=error.message.replace(path, "it"), advice=error.advice)


def _smi(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
    found = [
        r.FailureLine(file=name, line=line, text=f"nvidia-smi: GPU {card}: {said}")
        for line, card, said in parse_smi(text)
    ]
    return Contents(kinds.SMI, tuple(found[:MOST_STACKS]), lines=text.count("\n") + 1)


def parse_smi(text: str) -> Iterator[tuple[int, str, str]]:
    """What ``nvidia-smi -q`` says is wrong: the number of the line, the card, and the error."""
    card = section = counts = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := _CARD.match(raw):
            card, section, counts = match[1], "", ""
        elif ":" not in line:
            if line in ("Volatile", "Aggregate"):
                counts = line
            elif line:
                section, counts = line, counts if line.startswith("ECC") else ""
        key, _, value = (part.strip() for part in line.partition(":"))
        if counts == "Volatile" and "Uncorrectable" in key and value.isdigit() and int(value[:18]):
            yield number, card, f"{value[:18]} uncorrectable ECC errors since the driver was loaded ({key})"
        elif section == "Remapped Rows" and key == "Remapping Failure Occurred" and value == "Yes":
            yield number, card, "uncorrectable ECC errors: a row could not be remapped"
        elif "GPU requires reset" in value or value == "GPU is lost":
            yield number, card, value[:80]


def _stacks_json(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    content = _whole(file, MOST_TEXT_BYTES)
    threads = msgspec.json.decode(content, type=list[_Thread])
    pid = next((thread.pid for thread in threads if thread.pid), 0)
    stacks = tuple(parse_dump(pid, content))[:MOST_STACKS]
    return Contents(kinds.STACKS_JSON, stacks, rank_in_name(path))


def _stacks_text(file: BinaryIO, path: str, name: str, modified: float, ends_at: float) -> Contents:
    text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
    return Contents(kinds.STACKS_TEXT, tuple(parse_stack_text(text))[:MOST_STACKS], rank_in_name(path))


def parse_stack_text(text: str) -> Iterator[r.Stack]:
    """The threads in the text of ``py-spy dump``, innermost frame first; the main thread has the number of its process."""
    pid = 0
    thread: tuple[int, str, bool] | None = None
    frames: list[r.Frame] = []
    for line in text.splitlines():
        if match := _PROCESS.match(line):
            yield from _made(pid, thread, frames)
            pid, thread, frames = int(match[1]), None, []
        elif match := _THREAD.match(line):
            yield from _made(pid, thread, frames)
            number = int(match[1]) if match[1] else int(match[2], 16) % 2**62
            name = match["name"] or ""
            thread, frames = (pid if name == "MainThread" else number, name, "gil" in match["states"]), []
        elif (match := _STACK_FRAME.match(line)) and len(frames) < MOST_FRAMES:
            frames.append(r.Frame(match["function"][:200], match["file"][:400], int(match["line"] or 0)))
    yield from _made(pid, thread, frames)


def _made(pid: int, thread: tuple[int, str, bool] | None, frames: list[r.Frame]) -> Iterator[r.Stack]:
    if thread is not None:
        tid, name, gil = thread
        yield r.Stack(pid=pid, tid=tid, thread=name, frames=tuple(frames), owns_gil=gil)


Reader = Callable[[BinaryIO, str, str, float, float], Contents]
READERS: dict[str, Reader] = {
    kinds.DUMP: _dump,
    kinds.DUMP_JSON: _dump,
    kinds.RAS: _ras,
    kinds.STACKS_JSON: _stacks_json,
    kinds.STACKS_TEXT: _stacks_text,
    kinds.LOG: _log,
    kinds.SMI: _smi,
    kinds.TRACE: _trace,
}


class _Thread(msgspec.Struct):
    """Of a thread in py-spy's JSON, whose it is."""

    pid: int = 0


class _Limited:
    """A file of which no more than so many bytes are read. silent: the rest is as if it were not there."""

    def __init__(self, file: object, most_bytes: int, silent: bool = False) -> None:
        self._file = cast(BinaryIO, file)
        self._left, self._silent = most_bytes, silent

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        data = self._file.read(wanted)
        if len(data) > self._left:
            if not self._silent:
                raise ValueError("it unpacks to far more than its size")
            data = data[: self._left]
        self._left -= len(data)
        return data


class _Joined:
    """What was read of a file already, and the rest of it."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._rest.read(size)
        if size < 0:
            head, self._head = self._head, b""
            return head + self._rest.read()
        head, self._head = self._head[:size], self._head[size:]
        return head


def _whole(file: BinaryIO, most_bytes: int) -> bytes:
    chunks, left = [], most_bytes + 1
    while left > 0 and (chunk := file.read(min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise Unavailable(f"larger than {most_bytes / 2**20:.0f} MiB, too large to be read safely")
    return b"".join(chunks)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
