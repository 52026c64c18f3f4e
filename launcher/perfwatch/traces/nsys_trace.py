"""A window of Nsight Systems in the same reading as a trace of torch.profiler, from nsys' own SQLite export.

Work on the GPUs and CUDA calls that waited are read alike. nsys records no torch operations and no Python. So the passes are inferred
from the names and the order of the kernels. Other work of the host, and the kind of attention, stay unknown.

The file is untrusted: it is opened read-only, nothing in it is executed, and every query is bounded by a deadline and a number of
rows. A table that this job or version does not have is absent: a job that copied nothing has no table of copies.
"""

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec

from perfwatch.errors import TraceUnreadable, no_file
from perfwatch.traces.passes import Pass, passes
from perfwatch.traces.torch_events import Arguments, Event
from perfwatch.traces.torch_host import BACKWARD, OPTIMIZER
from perfwatch.traces.torch_trace import fold
from perfwatch_probes.readings import TorchTrace

MOST_EVENTS = 2_000_000  # a launch-bound job makes 200,000 kernels a second at the most
READ_SECONDS = 30.0
# Category and name by which ``torch_host`` knows a pass; not that of a step, which nsys does not see.
_SPANS = {
    "optimizer": ("user_annotation", OPTIMIZER),
    "backward": ("cpu_op", BACKWARD),
    "forward": ("cpu_op", "forward"),
}
ELSEWHERE = "is elsewhere"  # what nsys knows of a host that neither waits for the card nor launches
_STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's virtual machine
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # ENUM_CUDA_MEMCPY_OPER
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}  # ENUM_CUDA_MEM_KIND
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_QUERIES = {
    "RUNTIME": (
        "SELECT r.globalTid, r.start, r.end, s.value, r.correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN StringIds s ON s.id = r.nameId ORDER BY r.start"
    ),
    "KERNEL": (
        "SELECT k.globalPid, k.start, k.end, s.value, k.correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName ORDER BY k.start"
    ),
    "MEMCPY": (
        "SELECT globalPid, start, end, copyKind, srcKind, dstKind, bytes, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "ORDER BY start"
    ),
    "MEMSET": "SELECT globalPid, start, end, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET ORDER BY start",
}


def read(
    path: Path,
    ranks: Mapping[int, int | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    of: BinaryIO | None = None,
) -> list[TorchTrace]:
    """One reading for each process that ran something on a card, the busiest first.

    Args:
        path: what ``nsys export --type sqlite`` wrote.
        ranks: of the processes that are known, by pid.
        clock: monotonic seconds.
        of: the open file that it must be. SQLite opens by path, and follows links.

    Raises TraceUnreadable: no such file, not of nsys, damaged, too large, or not read within 30 s.
    """
    by_process = _by_process(path, clock, of)
    ranks = ranks or {}
    readings = [
        _reading(events, pid, ranks.get(pid)) for pid, events in by_process.items() if any(map(_on_card, events))
    ]
    return sorted(readings, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def kernel_times(path: Path, clock: Callable[[], float] = time.monotonic) -> dict[str, float]:
    """Seconds by the kernels' full names, all processes together. Raises TraceUnreadable as ``read`` does."""
    times: Counter[str] = Counter()
    for events in _by_process(path, clock).values():
        for event in events:
            if event.cat == "kernel":
                times[event.name] += event.dur / 1e6  # type: ignore[assignment]  # a Counter of floats adds as well
    return dict(times)


def _reading(events: list[Event], pid: int, rank: int | None) -> TorchTrace:
    """The same folding as for torch, with the passes inferred, less what nsys cannot know."""
    found = fold([*_inferred(events), *events], pid, rank)
    idle = {ELSEWHERE if name == "python" else name: share for name, share in found.idle.items() if name != "data"}
    return msgspec.structs.replace(
        found,
        idle=idle,
        launch_bound_share=round(sum(idle.get(name, 0.0) for name in ("forward", "backward", "optimizer")), 6),
        syncs=tuple(msgspec.structs.replace(one, where="") for one in found.syncs),
        operations=(),
        math_attention_share=None,
    )


def _inferred(events: list[Event]) -> Iterator[Event]:
    """What torch would have said of its passes: a span from the first to the last launch of kernels of one pass in a row.

    By the order in which kernels were launched and their names (``perfwatch.traces.passes``); a thread at a time.
    """
    calls = {_correlation(event): event for event in events if event.cat == "cuda_runtime"}
    launches = [
        (calls[_correlation(event)], event.name)
        for event in events
        if _correlation(event) in calls and event.cat == "kernel"
    ]
    launches.sort(key=lambda launch: launch[0].ts)
    runs: list[tuple[Pass, Event, Event]] = []
    for (call, _), part in zip(launches, passes(name for _, name in launches), strict=True):
        if runs and runs[-1][0] == part and runs[-1][2].tid == call.tid:
            runs[-1] = (part, runs[-1][1], call)
        else:
            runs.append((part, call, call))
    for part, first, last in runs:
        if part in _SPANS:
            kind, name = _SPANS[part]
            yield Event("X", kind, name, first.pid, first.tid, first.ts, last.ts + last.dur - first.ts)


def _correlation(event: Event) -> object:
    return event.args.correlation if event.args is not None else None


def _on_card(event: Event) -> bool:
    return event.cat != "cuda_runtime"


_ADVICE = "make it again: nsys export --type sqlite --force-overwrite=true FILE.nsys-rep"


def _by_process(path: Path, clock: Callable[[], float], of: BinaryIO | None = None) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    with _opened(path, clock, of) as database:
        try:
            for count, event in enumerate(_events(database)):
                if count >= MOST_EVENTS:
                    raise TraceUnreadable(f"{path}: more than {MOST_EVENTS:,} events", "a shorter window: --seconds 1")
                found.setdefault(int(event.pid), []).append(event)
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise TraceUnreadable(
                    f"{path} was not read within {READ_SECONDS:g} s", "a shorter window: --seconds 1"
                ) from None
            raise TraceUnreadable(f"{path} is no export of nsys: {error}", _ADVICE) from None
        except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
            raise TraceUnreadable(f"{path} is damaged: {error}", _ADVICE) from None
    return found


def _is_open_twice(file: BinaryIO) -> bool:
    """True if another descriptor of this process is of the same file."""
    wanted, count = os.fstat(file.fileno()), 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.path.samestat(os.fstat(int(name)), wanted)
        except OSError:
            continue  # that of the listing itself
    return count > 1


@contextmanager
def _opened(path: Path, clock: Callable[[], float], of: BinaryIO | None) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise no_file(path, _ADVICE)
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    if of is not None and not _is_open_twice(of):
        database.close()
        raise TraceUnreadable(f"{path} became another file while it was read")
    ends = clock() + READ_SECONDS
    database.set_progress_handler(lambda: clock() > ends, _STEPS_BETWEEN_LOOKS)
    try:
        yield database
    finally:
        database.close()


def _events(database: sqlite3.Connection) -> Iterator[Event]:
    """Calls, kernels, copies and fills; microseconds since the first, for a float holds no wall clock in nanoseconds."""
    database.execute("PRAGMA trusted_schema=OFF")
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if "StringIds" not in tables:
        raise TraceUnreadable("this database is no export of nsys: it has no table of strings", _ADVICE)
    there = [kind for kind in _QUERIES if _PREFIX + kind in tables]
    begins = [database.execute(f"SELECT MIN(start) FROM {_PREFIX}{kind}").fetchone()[0] for kind in there]
    zero = min((int(begin) for begin in begins if begin is not None), default=0)
    for kind in there:
        for row in database.execute(_QUERIES[kind]):
            yield _event(kind, row, zero)


def _event(kind: str, row: tuple[Any, ...], zero: int) -> Event:
    process, begin, end = int(row[0]), int(row[1]), int(row[2])
    event = Event(
        ph="X",
        pid=process >> 24 & 0xFFFFFF,
        tid=process & 0xFFFFFF,
        ts=(begin - zero) / 1000,
        dur=max(0, end - begin) / 1000,
        args=Arguments(correlation=int(row[-1] or 0)),
    )
    if kind == "RUNTIME":
        event.cat, event.name = "cuda_runtime", str(row[3]).partition("_v")[0]
    elif kind == "KERNEL":
        event.cat, event.name = "kernel", str(row[3])
    elif kind == "MEMCPY":
        source, target = (_MEMORIES.get(int(cell or 0), "Unknown") for cell in row[4:6])
        event.cat, event.name = "gpu_memcpy", f"Memcpy {_DIRECTIONS.get(int(row[3]), 'other')} ({source} -> {target})"
        event.args = Arguments(correlation=int(row[-1] or 0), bytes=int(row[6]))
    else:
        event.cat, event.name = "gpu_memset", "Memset (Device)"
    return event
