"""What is left of a segment when it is thinned: pure functions on the lines of a session, whatever version wrote them."""

from collections.abc import Iterable, Iterator

import msgspec

from perfwatch.recording.damage import DAMAGED

FULL, THINNED, STRIPPED = 0, 1, 2
THINNED_SECONDS = 10.0
# Readings that stay true after they were made: without them the rest cannot be read.
LASTING_TYPES = frozenset(
    "Process ProcessEnded Software Traceback ThreadError KernelMessage Affinity Gpu GpuBinding GpuEvent TorchTrace".split()
)


class _Entity(msgspec.Struct, frozen=True):
    """As much of a reading as says which one it is, whatever version wrote it."""

    type: str
    pid: int | None = None
    tid: int | None = None
    fd: int | None = None
    probe: str | None = None
    entity: str | None = None
    path: str | None = None
    device: str | None = None
    interface: str | None = None
    uuid: str | None = None
    call: str | None = None


class _Line(msgspec.Struct, frozen=True):
    at: float
    reading: _Entity


_LINE = msgspec.json.Decoder(_Line)


def kept(lines: Iterable[bytes], level: int) -> Iterator[bytes]:
    """Of one segment: the lasting readings, and unless stripped, each entity's last reading in every window."""
    window: dict[_Entity, bytes] = {}
    window_ends = 0.0
    for line in lines:
        try:
            decoded = _LINE.decode(line)
        except DAMAGED:
            continue
        if decoded.at >= window_ends:
            yield from window.values()
            window.clear()
            window_ends = decoded.at + THINNED_SECONDS
        if decoded.reading.type in LASTING_TYPES:
            yield line
        elif level < STRIPPED:
            window.pop(decoded.reading, None)
            window[decoded.reading] = line
    yield from window.values()


def at_of(line: bytes) -> float:
    """When a reading was made, in seconds since the session began; 0.0 for a damaged line."""
    try:
        return _LINE.decode(line).at
    except DAMAGED:
        return 0.0


def without_verdict(line: bytes) -> bytes:
    """An event without the verdict that it carries, which is most of it; what was said, and when, is left. Empty: damaged."""
    try:
        event = msgspec.json.decode(line)
        event.pop("verdict", None)
        return msgspec.json.encode(event) + b"\n"
    except (*DAMAGED, AttributeError):
        return b""


def newest(lines: list[bytes], most_bytes: int) -> list[bytes]:
    """As many of the last lines as fit."""
    first, total = len(lines), 0
    while first > 0 and total + len(lines[first - 1]) <= most_bytes:
        first -= 1
        total += len(lines[first])
    return lines[first:]
