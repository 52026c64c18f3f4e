"""What torch's profiler (Kineto) and its daemon say to each other over datagrams; the layout, and nothing that acts.

A process whose environment has KINETO_USE_DAEMON asks the socket ``dynolog`` every few seconds whether there is something
to do. Source: libkineto's FabricManager.h, Utils.h and IpcFabricConfigClient.cpp; tried with torch 2.11 and 2.13.

=========  ==============================================================================================
datagram   ``<Q32s``: payload size, type padded with NUL; then the payload
``req``    ``<iiq``: wanted types (1 events, 2 activities), number of pids, job id; then ``i`` per pid, own pid first
answer     type ``req``, payload: the configuration as text, empty where there is nothing to do
``ctxt``   ``<iiq``: gpu, pid, job id; the answer is the number of processes registered there, ``<i``
=========  ==============================================================================================

While a trace is being taken the process asks without the bit for activities.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

HEADER = struct.Struct("<Q32s")
REQUEST = struct.Struct("<iiq")
COUNT = struct.Struct("<i")
ACTIVITIES = 2  # bit of the wanted types
MOST_PIDS = 64  # Kineto names the process and at most ten ancestors
LONGEST_DATAGRAM_BYTES = 4096
# sun_path holds 108 bytes, and a client adds "/dynoconfigclient" and a UUID to the folder: a longer one makes it fail.
LONGEST_FOLDER_BYTES = 54


@dataclass(frozen=True)
class Poll:
    """One question of a process. ``idle``: no trace is being taken in it. ``pids``: as the process itself sees them."""

    idle: bool
    pids: tuple[int, ...]


def parse(datagram: bytes) -> Poll | int | None:
    """A poll, the pid of a process that registers, or None for what is neither."""
    if len(datagram) < HEADER.size:
        return None
    size, kind = HEADER.unpack_from(datagram)
    payload = datagram[HEADER.size :]
    if size != len(payload) or len(payload) < REQUEST.size:
        return None
    first, second, _ = REQUEST.unpack_from(payload)
    name = kind.rstrip(b"\0")
    if name == b"ctxt":
        return int(second)
    if name != b"req" or not 0 < second <= MOST_PIDS or len(payload) != REQUEST.size + 4 * second:
        return None
    pids = struct.unpack_from(f"<{second}i", payload, REQUEST.size)
    return Poll(bool(first & ACTIVITIES), pids)


def answer(text: str = "") -> bytes:
    """The answer to a poll: a configuration, or nothing to do."""
    payload = text.encode()
    return HEADER.pack(len(payload), b"req") + payload


def registered(count: int) -> bytes:
    """The answer to a registration."""
    return HEADER.pack(COUNT.size, b"ctxt") + COUNT.pack(count)


@dataclass(frozen=True)
class Ask:
    """One window as Kineto is told of it.

    Exactly one way to say when: ``start_unix_ms`` with ``duration_ms``, or ``start_step`` with ``steps``; the steps are
    those of Kineto's own count, which follows the optimizers' steps. ``allocations``: no trace, but a snapshot of the
    caching allocator at the end, with the history of ``duration_ms``.
    """

    file: str
    start_unix_ms: int | None = None
    duration_ms: int = 500
    start_step: int | None = None
    steps: int | None = None
    switches: tuple[str, ...] = ()  # of SWITCHES
    allocations: bool = False


SWITCHES = {
    "stacks": "PROFILE_WITH_STACK",
    "shapes": "PROFILE_REPORT_INPUT_SHAPES",
    "memory": "PROFILE_PROFILE_MEMORY",
}


def configuration(ask: Ask) -> str:
    """The text of a request, one ``KEY=VALUE`` a line. Raises ValueError where a value would break the line."""
    lines = [("ACTIVITIES_LOG_FILE", ask.file)]
    if ask.allocations:
        lines += [
            ("PROFILE_MEMORY", "true"),
            ("PROFILE_MEMORY_DURATION_MSECS", str(ask.duration_ms)),
            ("PROFILE_START_TIME", "0"),
        ]
    elif ask.start_step is not None and ask.steps is not None:
        lines += [
            ("PROFILE_START_ITERATION", str(ask.start_step)),
            ("PROFILE_START_ITERATION_ROUNDUP", "1"),
            ("ACTIVITIES_ITERATIONS", str(ask.steps)),
            ("ACTIVITIES_WARMUP_ITERATIONS", "0"),
        ]
    else:
        lines += [
            ("PROFILE_START_TIME", str(ask.start_unix_ms or 0)),
            ("ACTIVITIES_DURATION_MSECS", str(ask.duration_ms)),
        ]
    lines.append(("ACTIVITIES_WARMUP_PERIOD_SECS", "0"))
    lines += [(SWITCHES[name], "true") for name in ask.switches]
    return _joined(lines)


def _joined(lines: Iterable[tuple[str, str]]) -> str:
    text = []
    for key, value in lines:
        if any(character in value for character in "=#\n\r"):
            raise ValueError(f"{key}: {value!r} cannot be said to Kineto, which splits lines at = and #")
        text.append(f"{key}={value}\n")
    return "".join(text)
