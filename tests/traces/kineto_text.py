"""Traces for tests, in the layout in which Kineto writes them. Times are microseconds."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAIN, ENGINE = 100, 131


def span(cat: str, name: str, begin: float, end: float, tid: int | str = MAIN, **args: Any) -> dict[str, Any]:
    """One event."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": begin, "dur": end - begin}
    return event | ({"args": args} if args else {})


def window(begin: float, end: float) -> dict[str, Any]:
    """The event that says from when to when was recorded."""
    return span("Trace", "PyTorch Profiler (0)", begin, end, "PyTorch Profiler")


def launched(
    name: str, at: float, begin: float, end: float, number: int, tid: int = MAIN, **args: Any
) -> list[dict[str, Any]]:
    """A kernel, and the call that launched it."""
    kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return [
        span("cuda_runtime", "cudaLaunchKernel", at, at + 2, tid, correlation=number),
        span(kind, name, begin, end, 7, correlation=number, **args),
    ]


def text(events: list[dict[str, Any]], cards: Sequence[dict[str, Any]] = ()) -> bytes:
    """The file's content."""
    body = ",\n".join(f"  {{\n    {json.dumps(one)[1:-1]}\n  }}" for one in events)
    tail = '  "traceName": "trace.json"\n}'
    return f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {json.dumps(list(cards))},\n  "traceEvents": [\n{body}\n  ],\n{tail}'.encode()


def write(path: Path, events: list[dict[str, Any]], cards: Sequence[dict[str, Any]] = ()) -> Path:
    """The file, gzip'd."""
    path.write_bytes(gzip.compress(text(events, cards)))
    return path
