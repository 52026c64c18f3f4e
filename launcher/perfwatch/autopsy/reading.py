"""One file, read in a child that may be killed: what it is, and the readings that it gives.

A file of a job is untrusted. Sizes, nesting and time are bounded, pickles know plain containers alone, and what a child says comes back
as data of a known type (``guest.Plain``).
"""

import gzip
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from perfwatch.autopsy import kinds
from perfwatch.autopsy.logs import read_log
from perfwatch.autopsy.machines import parse_dcgm, parse_smi
from perfwatch.autopsy.sessions import read_session
from perfwatch.autopsy.stack_texts import parse_gdb, parse_pystack, parse_stack_text
from perfwatch.errors import TraceUnreadable
from perfwatch.recording.recording import Event
from perfwatch.traces import nsys_trace, torch_trace
from perfwatch_probes import flight_record, nccl_report
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import MOST_RANKS, is_rank
from perfwatch_probes.guest import folder_below, opened
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stacks import parse_dump

MOST_DUMP_BYTES = 64 * 2**20  # 2,000 entries with stacks are 1 MiB
MOST_TEXT_BYTES = 16 * 2**20  # of an answer or a stack that is read at once
MOST_LOG_BYTES = 16 * 2**30
MOST_UNPACKED = 200  # times its size that a compressed file may have
MOST_STACKS = 4096

_RANK_IN_NAME = re.compile(r"(?:rank|Rank|RANK)[_.-]?(\d{1,7})(?!\d)")
_NUMBER_AT_END = re.compile(r"(\d{1,7})(?:\.(?:pickle|pkl|json|txt|log|err|out|dump))*$")
_ATTEMPT = re.compile(r"/attempt_(\d{1,6})/")
_STEP_IN_NAME = re.compile(r"(?i)(?:step|iter(?:ation)?|checkpoint|ckpt)s?[-_=]?(\d{1,12})(?!\d)")
_OF_TORCHRUN = re.compile(r"/attempt_\d+/(\d{1,7})/(?:stdout|stderr)(?:\.log)?$")


class Contents(msgspec.Struct, frozen=True):
    """What one file says. reason: why it says nothing, or not all; modified: unix time; event: what a recorded session says."""

    kind: str
    readings: tuple[r.ANY_READING, ...] = ()
    rank: int | None = None
    lines: int = 0
    size_bytes: int = 0
    modified: float = 0.0
    newest: float | None = None
    reason: str = ""
    advice: str = ""
    event: Event | None = None


class Source(NamedTuple):
    """Where a file is. path: absolute; name: as it is to be shown; held: opens it again, whatever the path names by now."""

    path: str
    name: str
    held: str
    modified: float
    ends_at: float


def read_file(path: str, top: str, name: str, seconds: float) -> Contents:
    """A file, whatever it is. Runs in a guest. Raises OSError; ValueError where it is a regular file no more.

    Args:
        path: absolute.
        top: what the user named: this file, or a folder above it. Below it no link is followed: a user who may write there can have put a
            link or a device there since it was listed.
        name: as it is to be shown.
        seconds: after which a log is read no further.
    """
    ends_at = time.monotonic() + seconds
    with ExitStack() as ends:
        held = path
        if path != top:
            folder = folder_below(top, path)
            ends.callback(os.close, folder)
            held = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
        file = ends.enter_context(open(opened(held, follow=path == top), "rb", buffering=1 << 18))
        state = os.fstat(file.fileno())
        told = _any(file, Source(path, name, held, state.st_mtime, ends_at))
        return msgspec.structs.replace(told, size_bytes=state.st_size, modified=state.st_mtime)


def _any(file: BinaryIO, source: Source) -> Contents:
    """An open file that can seek."""
    head = file.read(kinds.HEAD_BYTES)
    kind = kinds.kind_of(head)
    file.seek(0)
    if kind == kinds.GZIP:
        size = max(1, os.fstat(file.fileno()).st_size) if hasattr(file, "fileno") else len(head)
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            limited = cast(BinaryIO, _Limited(unpacked, MOST_UNPACKED * size + 2**20))
            try:
                return _unpacked(limited, source)
            except (OSError, EOFError, ValueError) as error:
                return Contents(kind, reason=f"it does not unpack: {_said(error)}")
    return _read(kind, file, source)


def _unpacked(file: BinaryIO, source: Source) -> Contents:
    """What an archive of one file holds. Raises OSError, EOFError, ValueError."""
    head = file.read(kinds.HEAD_BYTES)
    kind = kinds.kind_of(head)
    if kind in PACKED:
        return Contents(kind, reason="compressed more than once", advice="unpack it first")
    return _read(kind, cast(BinaryIO, _Joined(head, file)), source)


def _read(kind: str, file: BinaryIO, source: Source) -> Contents:
    reader = READERS.get(kind)
    if kind == "empty" and (rank := rank_in_name(source.path)) is not None:  # that a rank wrote nothing tells something
        return Contents(kinds.LOG, (r.LogSpan(file=source.name),), rank)
    if reader is None:
        what = "it is " + (kind if kind == "empty" else f"an {kind}" if kind[0] in "aeio" else f"a {kind}")
        return Contents(kind, reason=what, advice=kinds.REFUSED.get(kind, ""))
    try:
        return reader(file, source)
    except Unavailable as unavailable:
        return Contents(kind, reason=f"{kind}: {unavailable.reason}", advice=unavailable.advice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, MemoryError) as error:
        return Contents(kind, reason=f"{kind} that cannot be read: {_said(error)}")


def _dump(file: BinaryIO, source: Source) -> Contents:
    groups = flight_record.parse(_whole(file, MOST_DUMP_BYTES), 0, 0, "file")
    rank = rank_of_dump(groups, source.path)
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


def _log(file: BinaryIO, source: Source) -> Contents:
    year = datetime.fromtimestamp(min(max(0.0, source.modified), 2.0**32), timezone.utc).year
    limited = cast(BinaryIO, _Limited(file, MOST_LOG_BYTES, silent=True))
    found = read_log(limited, source.name, year, rank_in_name(source.path), source.ends_at)
    of_attempt = _ATTEMPT.search(source.path)
    attempt = int(of_attempt[1]) if of_attempt else None
    failures = tuple(
        one if attempt is None and found.restarted else msgspec.structs.replace(one, attempt=attempt)
        for one in found.failures
    )
    return Contents(
        kinds.LOG,
        (*failures, msgspec.structs.replace(found.span(), attempt=attempt)),
        rank_in_name(source.path),
        lines=found.lines,
        newest=found.newest,
        reason=f"log: {found.cut}" if found.cut else "",
    )


def _checkpoint(file: BinaryIO, source: Source) -> Contents:
    size = os.fstat(file.fileno()).st_size if hasattr(file, "fileno") else 0
    return Contents(
        kinds.CHECKPOINT,
        (
            r.SavedCheckpoint(
                file=source.name, written=source.modified, size_bytes=size, step=step_in_path(source.path)
            ),
        ),
    )


def step_in_path(path: str) -> int | None:
    """The step of a checkpoint by its name or that of its folder: ``step_500.pt``, ``checkpoint-500/``, ``iter_0000500/``."""
    for part in reversed(path.split("/")[-4:]):
        if match := _STEP_IN_NAME.search(part):
            return int(match[1])
    return None


def _ras(file: BinaryIO, source: Source) -> Contents:
    text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
    return Contents(kinds.RAS, tuple(nccl_report.parse(text)))


def _trace(file: BinaryIO, source: Source) -> Contents:
    rank = rank_in_name(source.path)
    try:
        return Contents(kinds.TRACE, (torch_trace.read(Path(source.held), 0, rank),), rank)
    except TraceUnreadable as error:
        return Contents(kinds.TRACE, reason=error.message.replace(source.held, "it"), advice=error.advice)


def _session(file: BinaryIO, source: Source) -> Contents:
    folder, held = source.name.rpartition("/")[0] or os.path.dirname(source.path), Path(source.held).parent
    try:
        return Contents(kinds.SESSION, event=read_session(held, folder))
    except Unavailable as error:
        where = os.path.dirname(source.path)
        raise Unavailable(error.reason.replace(str(held), where), error.advice.replace(str(held), where)) from None


def _checks(kind: str, tool: str, parse: Callable[[str], Iterator[tuple[int, str, str]]]) -> "Reader":
    """What a tool that checks cards found: line, card and words of each."""

    def read(file: BinaryIO, source: Source) -> Contents:
        text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
        found = [
            r.FailureLine(file=source.name, line=line, text=f"{tool}: GPU {card}: {said}")
            for line, card, said in parse(text)
        ]
        return Contents(kind, tuple(found[:MOST_STACKS]), lines=text.count("\n") + 1)

    return read


def _nsys(file: BinaryIO, source: Source) -> Contents:
    try:
        return Contents(kinds.SQLITE, tuple(nsys_trace.read(Path(source.held), of=file)))
    except TraceUnreadable as error:
        return Contents(kinds.SQLITE, reason=error.message.replace(source.held, "it"), advice=error.advice)


def _zip(file: BinaryIO, source: Source) -> Contents:
    """An archive of one file is read as that file."""
    with zipfile.ZipFile(file) as archive:
        members = [one for one in archive.infolist() if not one.is_dir()]
        if len(members) != 1:
            return Contents(kinds.ZIP, reason=f"a zip archive of {len(members)} files", advice="unpack it first")
        size = max(1, members[0].compress_size)
        with archive.open(members[0]) as unpacked:
            limited = cast(BinaryIO, _Limited(unpacked, MOST_UNPACKED * size + 2**20))
            return _unpacked(limited, source)


def _stacks_json(file: BinaryIO, source: Source) -> Contents:
    content = _whole(file, MOST_TEXT_BYTES)
    threads = msgspec.json.decode(content, type=list[_Thread])
    pid = next((thread.pid for thread in threads if thread.pid), 0)
    stacks = tuple(parse_dump(pid, content))[:MOST_STACKS]
    return Contents(kinds.STACKS_JSON, stacks, rank_in_name(source.path))


def _texts(kind: str, parse: Callable[[str], Iterator[r.Stack]]) -> "Reader":
    def read(file: BinaryIO, source: Source) -> Contents:
        text = _whole(file, MOST_TEXT_BYTES).decode("utf-8", "replace")
        return Contents(kind, tuple(parse(text))[:MOST_STACKS], rank_in_name(source.path))

    return read


PACKED = (kinds.GZIP, kinds.ZIP, kinds.SQLITE)  # of which the unpacked bytes are no file that could be opened
Reader = Callable[[BinaryIO, Source], Contents]
READERS: dict[str, Reader] = {
    kinds.DUMP: _dump,
    kinds.DUMP_JSON: _dump,
    kinds.RAS: _ras,
    kinds.STACKS_JSON: _stacks_json,
    kinds.STACKS_TEXT: _texts(kinds.STACKS_TEXT, parse_stack_text),
    kinds.PYSTACK: _texts(kinds.PYSTACK, parse_pystack),
    kinds.GDB: _texts(kinds.GDB, parse_gdb),
    kinds.DCGM: _checks(kinds.DCGM, "dcgmi diag", parse_dcgm),
    kinds.SQLITE: _nsys,
    kinds.ZIP: _zip,
    kinds.LOG: _log,
    kinds.CHECKPOINT: _checkpoint,
    kinds.SESSION: _session,
    kinds.SMI: _checks(kinds.SMI, "nvidia-smi", parse_smi),
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
