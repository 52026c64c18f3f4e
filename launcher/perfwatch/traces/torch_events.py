"""The events of a torch.profiler trace, one after another, without loading the file: Chrome's JSON, plain or gzip'd.

The job wrote the file: it may be truncated, endless or hostile. Each event is decoded on its own and strictly; bytes, events and
time are bounded, and an error is reported in one sentence.

Kineto's own layout is cut at the lines that end an event. A trace that was written anew (by Python's json: on one line, or indented
otherwise, metadata first) is decoded object by object, which takes six times as long.
"""

import codecs
import errno
import gzip
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from shlex import quote
from typing import IO, Any, Generic, Protocol, TypeVar

import msgspec

from perfwatch.errors import TraceUnreadable
from perfwatch.recording.damage import DAMAGED

CHUNK_BYTES = 2**20
LARGEST_BYTES = 4 * 2**30  # unpacked: a gzip bomb ends here
MOST_EVENTS = 5_000_000  # 2 s of a busy loop with Python stacks; more would not fit into memory
LARGEST_EVENT_BYTES = 2**20
LARGEST_HEAD_BYTES = 8 * 2**20  # before the events: versions and devices
DEADLINE_SECONDS = 60.0
LONGEST_MICROSECONDS = 86_400e6  # of an event: a day
LATEST_MICROSECONDS = 1e16  # unix time in the year 2286; a double still tells a microsecond from the next
_BEGIN = b'"traceEvents"'
# Kineto indents an event's braces by two; a raw line feed cannot stand inside a JSON string, so this ends an event.
_END = b"\n  }"
_BETWEEN = b", \r\n\t"
_GAP = re.compile(r"[,\s]*")
_CARDS = re.compile(rb'"deviceProperties"\s*:\s*(\[[^\]]*\])')
_EXECUTION = re.compile(rb'"schema"\s*:\s*"[^"]{1,40}"[^\[]{0,2000}"nodes"\s*:\s*\[', re.DOTALL)


class Arguments(msgspec.Struct):
    """Of an event's ``args``, what is read here."""

    correlation: int | float | str | None = None
    bytes: int | float | str | None = None


class Event(msgspec.Struct):
    """One event: times in microseconds. ``ph``: X is a span, the only kind that says how long something took."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


class FullArguments(Arguments, rename={
    "external": "External id", "sequence": "Sequence number", "forward_thread": "Fwd thread id", "sizes": "Input Dims",
    "strides": "Input Strides", "types": "Input type", "given": "Concrete Inputs", "held": "Total Allocated",
    "card": "Device Type",
}):  # fmt: skip
    """What ``perfwatch.headroom`` reads besides. What the job wrote may be of any type: the reader looks before it trusts."""

    external: Any = None
    sequence: Any = None
    forward_thread: Any = None
    sizes: Any = None
    strides: Any = None
    types: Any = None
    given: Any = None
    held: Any = None
    card: Any = None
    grid: Any = None
    stream: Any = None


class FullEvent(Event):
    """An event with all of its arguments; ``ph`` i is a moment."""

    args: FullArguments | None = None


E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)


def events(
    path: Path,
    deadline_seconds: float = DEADLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    most_events: int = MOST_EVENTS,
) -> Iterator[Event]:
    """Every span of a trace, in the file's order.

    Args:
        path: a ``.json`` or ``.json.gz`` as torch.profiler writes it.
        deadline_seconds: for the whole file.
        clock: monotonic seconds.
        most_events: how many are read.

    Raises:
        TraceUnreadable: it is no such file, is cut off, or exceeds a bound; the events before were good.
    """
    return events_of(path, Event, deadline_seconds, clock, most_events)


def events_of(
    path: Path,
    kind: type[E],
    deadline_seconds: float = DEADLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    most_events: int = MOST_EVENTS,
    phases: Container[str] = ("X",),
    head: dict[str, Any] | None = None,
) -> Iterator[E]:
    """The events of a trace as records of a kind.

    Args:
        path: a ``.json`` or ``.json.gz`` as torch.profiler writes it.
        kind: of record; what it does not name is not kept.
        phases: which events; X is a span, i a moment.
        head: takes what stands before the events: under ``cards`` the properties of each card.
        deadline_seconds: for the whole file.
        clock: monotonic seconds.
        most_events: how many are read.

    Raises:
        TraceUnreadable: it is no such file, is cut off, or exceeds a bound; the events before were good.
    """
    ends = clock() + deadline_seconds
    cutter: _Cutter[E] | None = None
    pending, count = b"", 0
    with _opened(path) as file:
        for chunk in _chunks(file, path):
            if clock() > ends:
                raise TraceUnreadable(
                    f"{path}: reading it takes longer than {deadline_seconds:.0f} s", "ask for fewer steps"
                )
            if cutter is None:
                whole = pending + chunk
                pending, began = _body(whole, path)
                if not began:
                    continue
                if head is not None:
                    head.update(_head(whole[: len(whole) - len(pending)]))
                cutter = _cutter(pending, path, kind)
                chunk = pending
            for event in cutter.cut(chunk):
                if event.ph in phases:
                    if not (event.dur <= LONGEST_MICROSECONDS and abs(event.ts) <= LATEST_MICROSECONDS):
                        raise TraceUnreadable(
                            f"{path}: an event cannot be read: it begins at {event.ts:.3g} us and takes {event.dur:.3g} us"
                        )
                    count += 1
                    if count > most_events:
                        raise TraceUnreadable(f"{path}: more than {most_events:,} events", "ask for fewer steps")
                    yield event
            if cutter.ended:
                return  # what follows the events: versions, the process groups
    if cutter is None:
        raise TraceUnreadable(_no_trace(pending, path))
    if not cutter.ends_here():
        raise TraceUnreadable(f"{path} is cut off after {count:,} events", "the rank ended, or the disk was full")


class _Cutter(Protocol[E_co]):
    """Cuts the text of the events into events. ended: the list of events is over."""

    ended: bool

    def cut(self, chunk: bytes) -> Iterator[E_co]: ...
    def ends_here(self) -> bool: ...


class _ByLines(Generic[E]):
    """Kineto's own layout."""

    def __init__(self, path: Path, kind: type[E]) -> None:
        self._path, self._pending = path, b""
        self._decoder = msgspec.json.Decoder(kind)
        self.ended = False

    def cut(self, chunk: bytes) -> Iterator[E]:
        *pieces, self._pending = (self._pending + chunk).split(_END)
        for piece in pieces:
            if piece.lstrip(_BETWEEN).startswith(b"]"):
                self.ended = True
                return
            yield _decoded(self._decoder, piece, self._path)
        if len(self._pending) > LARGEST_EVENT_BYTES:
            raise _too_large(self._path)

    def ends_here(self) -> bool:
        return self._pending.lstrip(_BETWEEN).startswith(b"]")


class _ByObjects(Generic[E]):
    """Any other layout: one object after the other."""

    def __init__(self, path: Path, kind: type[E]) -> None:
        self._path, self._text, self._kind = path, "", kind
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")
        self._objects = json.JSONDecoder(parse_constant=_refused)
        self.ended = False

    def cut(self, chunk: bytes) -> Iterator[E]:
        text, at = self._text + self._letters.decode(chunk), 0
        while True:
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing as well
            if at >= len(text) or text[at] != "{":
                break
            try:
                found, end = self._objects.raw_decode(text, at)
            except ValueError:  # its end has not been read yet, or it has none
                break
            except RecursionError:
                raise TraceUnreadable(f"{self._path}: an event cannot be read: nested too deep") from None
            try:
                yield msgspec.convert(found, self._kind)
            except DAMAGED as error:
                raise TraceUnreadable(f"{self._path}: an event cannot be read: {error}") from None
            at = end
        self._text = text[at:]
        self.ended = self._text.startswith("]")
        if not self.ended and self._text[:1] not in ("", "{"):
            raise TraceUnreadable(f"{self._path}: an event cannot be read: it is no object")
        if len(self._text) > LARGEST_EVENT_BYTES and not self.ended:
            raise _too_large(self._path)

    def ends_here(self) -> bool:
        return self.ended


def _cutter(beginning: bytes, path: Path, kind: type[E]) -> _Cutter[E]:
    """What reads events that begin so: Kineto's layout, where the first of them is cut by it into something whole."""
    first = beginning[:LARGEST_EVENT_BYTES].partition(_END)
    try:
        if first[1]:
            msgspec.json.decode(first[0].lstrip(_BETWEEN) + b"}", type=Event)
            return _ByLines(path, kind)
    except DAMAGED:
        pass
    by_lines = beginning.lstrip(_BETWEEN).startswith(b"]")
    return _ByLines(path, kind) if by_lines else _ByObjects(path, kind)


def _head(text: bytes) -> dict[str, Any]:
    """The cards, as far as they can be read; what is damaged is left out."""
    found = _CARDS.search(text)
    try:
        cards = json.loads(found[1]) if found is not None else []
    except (ValueError, RecursionError):
        cards = []
    return {"cards": [one for one in cards if isinstance(one, dict)] if isinstance(cards, list) else []}


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _too_large(path: Path) -> TraceUnreadable:
    return TraceUnreadable(
        f"{path}: not written by torch.profiler: an event of more than {LARGEST_EVENT_BYTES:,} bytes"
    )


def _no_trace(head: bytes, path: Path) -> str:
    """What a file without events is, as far as its beginning tells."""
    if _EXECUTION.search(head):
        return f"{path} is an execution trace (operators without times), not a trace of torch.profiler"
    return f"{path} is not a trace of torch.profiler: it holds no traceEvents"


def _body(pending: bytes, path: Path) -> tuple[bytes, bool]:
    """What follows the bracket that opens the list of events, once it is there."""
    at = pending.find(_BEGIN)
    bracket = pending.find(b"[", at + len(_BEGIN)) if at >= 0 else -1
    if bracket >= 0:
        return pending[bracket + 1 :], True
    if len(pending) > LARGEST_HEAD_BYTES:
        raise TraceUnreadable(_no_trace(pending, path))
    return pending, False


def _decoded(decoder: "msgspec.json.Decoder[E]", piece: bytes, path: Path) -> E:
    try:
        return decoder.decode(piece.lstrip(_BETWEEN) + b"}")
    except DAMAGED as error:
        raise TraceUnreadable(f"{path}: an event cannot be read: {error}") from None


def _opened(path: Path) -> IO[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise TraceUnreadable(
                f"{path} is a symbolic link", f"name the file itself: {quote(os.path.realpath(path))}"
            ) from None
        raise TraceUnreadable(f"{path}: {error.strerror}") from None
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise TraceUnreadable(f"{path} is not a plain file")
    if file.peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]
    return file


def _chunks(file: IO[bytes], path: Path) -> Iterator[bytes]:
    total = 0
    try:
        while chunk := file.read(CHUNK_BYTES):
            total += len(chunk)
            if total > LARGEST_BYTES:
                raise TraceUnreadable(f"{path} unpacks to more than {LARGEST_BYTES // 2**30} GiB")
            yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceUnreadable(
            f"{path} is cut off or damaged: {error}", "the rank ended, or the disk was full"
        ) from None
