"""``capture torch``: torch.profiler on the live job, through the endpoint that it asks (Kineto on demand).

One trace per rank, gzip'd, all ranks in the same window: from the same step on where the agent counts them, the same moment
otherwise. (Where it ends is up to a thread of the profiler's: small steps that are made until it has run are in it as well.)
Opened by Perfetto and TensorBoard. Nothing is run: the profiler is in the job already, asleep.
"""

import gzip
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfwatch.captures.capture import CUPTI, Collected, File, Request, Scene, Window
from perfwatch.captures.kineto_link import check
from perfwatch.captures.torch_files import CHUNK_BYTES, packed
from perfwatch.captures.torch_window import MOST_SECONDS, SECONDS, names, torch_window
from perfwatch.errors import CaptureRefused, CaptureUnavailable, TraceUnreadable
from perfwatch.text import duration
from perfwatch.traces.torch_summary import summary
from perfwatch.traces.torch_trace import read
from perfwatch_probes.readings import TorchTrace

NAME = "torch"
SUMMARY = "torch.profiler: what each rank's CPU and GPU did in a few steps, on a time line"
DISTURBS = "steps in the window are slower by a tenth or two, with --stacks by half; writing the trace takes a core for seconds"
USES = frozenset({CUPTI})
TRIGGERED_BY = "timeline"
OPTIONS: Mapping[str, str] = {
    "stacks": "with the Python stack of each operation (needs the GIL: never on a job that may be hung)",
    "shapes": "with the shapes of each operation's inputs",
    "memory": "with what each operation allocates, where torch tells (2.11 and 2.13 do not; capture memory takes a snapshot)",
}

CARD_STANDS = frozenset({"stuck_kernel", "driver_unresponsive"})
ALLOCATION = b'"[memory]"'  # the name of each such event in a trace
SEARCHED_CHUNKS = 512  # of a trace: some seconds; nothing is said of a longer one
# A launch-bound loop on an H200 wrote 87 MB of JSON a second, which gzip makes a tenth of.
BYTES_A_SECOND = 90 * 2**20
SLOWED = 1.25  # times the usual step: beyond it that is worth a word
READ_SECONDS = 60.0  # of all ranks' traces


def belongs_to_the_user(scene: Scene) -> bool:
    """The endpoint, the profilers behind it and the folder of traces are."""
    return True


def available(request: Request, scene: Scene) -> None:
    """Raises what speaks against it: not armed, or something in it would hang with the job."""
    subjects = scene.wanted(request)
    without = [one for one in subjects if one.torch_loaded is False]
    if without:
        raise CaptureUnavailable(f"{names(without)} has not imported torch", "try again once it trains")
    check(scene, subjects)
    if scene.cause in CARD_STANDS:
        raise CaptureRefused(
            f"the job hangs ({scene.cause}): the profiler waits for the card before it writes, and would hang as well",
            "perfwatch capture stacks shows where every thread is",
        )
    if scene.may_be_hung and request.options.get("stacks"):
        raise CaptureRefused(
            "the job hangs, or may: a trace with Python stacks waits for the GIL and would hang as well",
            "leave --stacks out; perfwatch attach names the stacks",
        )
    if scene.may_be_hung and request.steps is not None:
        raise CaptureRefused(
            "the job makes no steps now: a window of steps would not end", "perfwatch capture torch --seconds 2"
        )
    if request.seconds is not None and request.seconds > MOST_SECONDS:
        raise CaptureRefused(f"--seconds is too long: {duration(MOST_SECONDS)} at most", "--seconds 2 shows the same")


def estimated_bytes(request: Request, scene: Scene) -> int:
    """Of the raw traces of all ranks."""
    seconds = request.seconds if request.seconds is not None else SECONDS
    return int(BYTES_A_SECOND * seconds) * max(1, len(scene.wanted(request)))


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """None: the profiler is part of the job."""
    return ()


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Have every rank record the same window; pack and read what they write."""
    subjects = scene.wanted(request)
    with torch_window(request, scene, window, subjects) as (recorded, _):
        files = tuple(packed(subject, path, window.folder) for subject, path in recorded.record(subjects))
    traces, unread = _read(files, window)
    return Collected(
        files=files,
        window_seconds=round(traces[0].window_seconds, 4) if traces else None,
        notes=(
            *recorded.notes,
            *unread,
            *unequal(traces, recorded.steps),
            *_slowed(traces, recorded.usual_seconds),
            *(_no_allocations(files) if request.options.get("memory") else ()),
        ),
        summary="\n".join(summary(traces)),
        report={"ranks": [msgspec.to_builtins(trace) for trace in traces]},
        readings=tuple(msgspec.to_builtins(trace) for trace in traces),
    )


def _slowed(traces: list[TorchTrace], usual_seconds: float | None) -> list[str]:
    """A profiler costs the host more than the card: where it slowed the steps, the gaps on the card are its own in part."""
    inside = traces[0].step_seconds if traces else None
    if not inside or not usual_seconds or inside < SLOWED * usual_seconds:
        return []
    return [
        f"the profiler made steps {inside / usual_seconds:.1f} times as long as usual: the card is busier without it, and less "
        "of the time is idle than the trace shows"
    ]


def unequal(traces: list[TorchTrace], asked: int | None) -> list[str]:
    """Where ranks recorded more steps than asked for, and not equally many: sums over their traces are not alike."""
    counts = sorted({trace.steps for trace in traces})
    if asked is None or len(counts) < 2 or counts[-1] <= asked:
        return []
    return [
        f"the ranks recorded {counts[0]} to {counts[-1]} steps, not {asked}: the profiler ends a window from a thread of its own, "
        f"and what was done until that ran is in it too; the first {asked} are the ones that were asked for"
    ]


def _no_allocations(files: tuple[File, ...]) -> list[str]:
    """Torch 2.11 and 2.13 tell allocations only to a profiler that the program itself has begun."""
    for file in files:
        before = b""
        with gzip.open(file.path) as trace:
            for _ in range(SEARCHED_CHUNKS):
                chunk = trace.read(CHUNK_BYTES)
                if ALLOCATION in before[-len(ALLOCATION) :] + chunk:
                    return []
                if not chunk:
                    break
                before = chunk
            else:
                return []
    return [
        "there are no allocations in it: this torch tells them to a profiler of the program's own alone; perfwatch capture memory"
    ]


def _read(files: tuple[File, ...], window: Window) -> tuple[list[TorchTrace], list[str]]:
    """What the traces say; one that cannot be read is kept for a program that can, and that is said."""
    traces: list[TorchTrace] = []
    unread: list[str] = []
    ends = window.clock() + READ_SECONDS
    for file in files:
        name = os.path.basename(file.path)
        if file.pid is None or window.clock() > ends:
            unread.append(f"{name} was not read: there was no time left")
            continue
        window.tell(f"reading {name}")
        try:
            traces.append(read(Path(file.path), file.pid, file.rank))
        except TraceUnreadable as error:
            unread.append(f"{name} was not read: {error.message}")
    return traces, unread
