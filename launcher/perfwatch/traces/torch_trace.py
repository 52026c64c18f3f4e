"""One rank's torch.profiler trace as one reading: the file is read once and summed, the events are not kept.

Captures call ``read``; the arithmetic is in ``torch_host`` and ``torch_device``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from perfwatch.traces.intervals import Interval, Intervals, length, overlap, union, without
from perfwatch.traces.torch_device import PAGEABLE, Device, Work
from perfwatch.traces.torch_events import Event, events
from perfwatch.traces.torch_host import (
    BLOCKED,
    LAUNCHES,
    MATH_ATTENTION,
    STEP,
    WAITS,
    Span,
    Thread,
    innermost,
    inside,
    is_user,
    shares,
    training_thread,
)
from perfwatch_probes.readings import HostShare, SyncPoint, TorchTrace

DEVICE_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}
CALL_KINDS = {"cuda_runtime", "cuda_driver"}
MODULE = "nn.Module: "
MOST_LISTED = 12
MICROSECONDS = 1e6


def read(path: Path, pid: int, rank: int | None = None) -> TorchTrace:
    """The reading of a trace file. Raises TraceUnreadable."""
    return fold(events(path), pid, rank)


def fold(trace: Iterable[Event], pid: int, rank: int | None = None) -> TorchTrace:
    """The reading of a trace's events."""
    sorted_out = _Sorted(trace)
    threads, device = sorted_out.threads, sorted_out.device()
    main = training_thread(threads)
    window = sorted_out.window
    steps = sorted(end for _, end, name in main.annotations if name.startswith(STEP))
    backward = union(span for thread in threads.values() for span in thread.backward)
    phases = _phases(main, backward, steps)
    gpu = _Gpu(device, main, backward, window).facts() if device.works else {}
    covered = (window[1] - window[0]) / MICROSECONDS
    plain = union(span for thread in threads.values() for span in thread.plain_attention)
    reading = TorchTrace(
        pid=pid,
        rank=rank,
        window_seconds=round(covered, 6) if threads or device.works else 0.0,
        steps=len(steps),
        step_seconds=_rounded((steps[-1] - steps[0]) / (len(steps) - 1) / MICROSECONDS) if len(steps) > 1 else None,
        phases=_seconds_of(phases, len(steps) - 1),
        outside_frames=_listed(main.frames, _outside(phases), is_user),
        syncs=_syncs(threads.values()),
        operations=_listed(main.operations, [window]),
        math_attention_share=_rounded(length(plain) / (window[1] - window[0])),
        math_attention_calls=sum(
            span[2] == MATH_ATTENTION for thread in threads.values() for span in thread.operations
        ),
        stacks=any(thread.frames for thread in threads.values()),
        launches=sum(call[2] in LAUNCHES for thread in threads.values() for call in thread.calls),
        kernels_in_step=round(len(device.works) / len(steps), 1) if steps and device.works else None,
    )
    return msgspec.structs.replace(reading, **gpu)


class _Sorted:
    """The events of a trace, each put where it belongs."""

    def __init__(self, trace: Iterable[Event]) -> None:
        self.threads: dict[int, Thread] = defaultdict(Thread)
        self._launched: dict[object, tuple[int, float]] = {}
        self._works: list[tuple[Event, object]] = []
        self._spans: list[Interval] = []
        first, last = float("inf"), float("-inf")
        for event in trace:
            first, last = min(first, event.ts), max(last, event.ts + event.dur)
            self._one(event)
        whole = self._spans[0] if self._spans else (first, last)
        self.window: Interval = whole if whole[1] > whole[0] else (0.0, 1.0)

    def _one(self, event: Event) -> None:
        begin, end = event.ts, event.ts + event.dur
        correlation = event.args.correlation if event.args is not None else None
        if event.cat in DEVICE_KINDS:
            self._works.append((event, correlation))
        elif event.cat == "Trace":
            self._spans.append((begin, end))
        elif isinstance(event.tid, int):
            thread = self.threads[event.tid]
            if event.cat == "cpu_op":
                thread.operations.append((begin, end, event.name))
            elif event.cat == "user_annotation":
                thread.annotations.append((begin, end, event.name))
            elif event.cat == "python_function":
                thread.frames.append((begin, end, event.name))
            elif event.cat in CALL_KINDS:
                thread.calls.append((begin, end, event.name))
                if correlation is not None:
                    self._launched[correlation] = (event.tid, begin)

    def device(self) -> Device:
        """What ran on the cards, each with the pass in which the host launched it."""
        works = []
        for event, correlation in self._works:
            launch = self._launched.get(correlation)
            part = self.threads[launch[0]].part_at(launch[1]) if launch is not None else "other"
            moved = event.args.bytes if event.args is not None else None
            plain = launch is not None and inside(self.threads[launch[0]].plain_attention, launch[1])
            size = moved if isinstance(moved, int) else 0
            works.append(Work(event.ts, event.ts + event.dur, event.name, part, size, plain))
        return Device(works)


class _Gpu:
    """What the card did, and what the training thread did while the card had nothing to do."""

    def __init__(self, device: Device, main: Thread, backward: Intervals, window: Interval) -> None:
        self._device, self._main, self._backward = device, main, backward
        # What was launched before the window still runs at its beginning, and is not in the trace: before the first kernel
        # that is, nothing is known of the card.
        began = min(max(window[0], device.busy[0][0]), window[1])
        self._window = window = (began, window[1])
        self._seconds = (window[1] - window[0]) or 1.0
        self._busy = overlap(device.busy, [window])

    def facts(self) -> dict[str, object]:
        """The reading's fields about the card."""
        device, busy_seconds = self._device, length(self._busy) or 1.0
        idle = without([self._window], self._busy)
        what = self._idle(idle)
        pageable = [work for work in device.copies if PAGEABLE in work.name]
        kernel_time = sum(work.end - work.begin for work in device.works)
        parts: dict[str, float] = defaultdict(float)
        for work in device.works:
            parts[work.part] += work.end - work.begin
        frames = self._main.frames
        return {
            "gpu_busy_share": self._share(self._busy),
            "gpu_busy_seconds": _rounded(length(self._busy) / MICROSECONDS),
            "families": _shared(
                {kind: sum(one.end - one.begin for one in works) for kind, works in device.kinds.items()}
            ),
            "parts": _shared(parts),
            "kernels": device.kernels(),
            "kernel_seconds": round(kernel_time / len(device.works) / MICROSECONDS, 8),
            "communication_share": self._share(device.communicating),
            "exposed_communication_share": self._share(device.exposed),
            "copy_share": self._share(device.copying),
            "exposed_copy_share": self._share(without(device.copying, device.computing)),
            "pageable_copies": len(pageable),
            "pageable_copy_bytes": sum(work.moved_bytes for work in pageable),
            "idle": {name: self._share(spans) for name, spans in what.items()},
            "idle_frames": _listed(frames, idle, is_user),
            "idle_modules": _listed(frames, idle, lambda name: name.startswith(MODULE)),
            "launch_bound_share": _rounded(
                sum(length(what[name]) for name in ("forward", "backward", "optimizer", "python")) / self._seconds
            ),
            "math_attention_share": _rounded(
                sum(work.end - work.begin for work in device.works if work.plain_attention) / busy_seconds
            ),
            "full_precision_gemm_share": _rounded(device.full_precision / busy_seconds),
        }

    def _idle(self, idle: Intervals) -> dict[str, Intervals]:
        """The gaps of the card by what the training thread was at; each moment counts once, the first that fits."""
        found: dict[str, Intervals] = {}
        rest = idle
        for name, state in (
            ("sync", self._main.waiting),
            ("data", self._main.loading),
            *self._main.blocked.items(),
            ("optimizer", self._main.optimizer),
            ("backward", self._backward),
            ("forward", self._main.operating),
        ):
            found[name] = overlap(rest, state)
            rest = without(rest, state)
        found["python"] = rest
        return found

    def _share(self, spans: Intervals) -> float:
        return _rounded(length(overlap(spans, [self._window])) / self._seconds)


def _phases(main: Thread, backward: Intervals, steps: list[float]) -> dict[str, Intervals]:
    """What the host does between the first and the last end of a step; each moment counts once, the first that fits.

    Waits are named where the trace has Python stacks. "outside": in no operation of torch.
    """
    if len(steps) < 2:
        return {}
    forward = without(main.operating, backward)
    named = {"data": main.loading, **main.blocked, "optimizer": main.optimizer}
    named |= {"backward": _closed(backward, forward), "forward": forward}
    found: dict[str, Intervals] = {}
    rest = [(steps[0], steps[-1])]
    for name, spans in named.items():
        found[name] = overlap(rest, spans)
        rest = without(rest, spans)
    return found | {"outside": rest}


def _seconds_of(phases: Mapping[str, Intervals], steps: int) -> dict[str, float]:
    return {name: _rounded(length(spans) / steps / MICROSECONDS) for name, spans in phases.items()}


def _outside(phases: Mapping[str, Intervals]) -> Intervals:
    return union(span for name in ("outside", *BLOCKED) for span in phases.get(name, ()))


def _closed(backward: Intervals, forward: Intervals) -> Intervals:
    """The backward passes with the engine's own pauses: those in which no operation of the forward pass or the optimizer runs."""
    pauses = ((end, begin) for (_, end), (begin, _) in pairwise(backward))
    return union([*backward, *(pause for pause in pauses if not overlap(forward, [pause]))])


def _syncs(threads: Iterable[Thread]) -> tuple[SyncPoint, ...]:
    """Where the host waits for the card, the longest first."""
    counts: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for thread in threads:
        frames = innermost(thread.frames, is_user) if thread.frames else []
        at = 0
        for begin, end, name in sorted(thread.calls):
            if not name.startswith(WAITS):
                continue
            while at < len(frames) and frames[at][1] <= begin:
                at += 1
            framed = at < len(frames) and frames[at][0] <= begin
            where = frames[at][2] if framed else thread.operation_at(begin)
            counts[name, where] += 1
            seconds[name, where] += end - begin
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:MOST_LISTED]
    return tuple(
        SyncPoint(call=call, where=where, count=counts[call, where], seconds=_rounded(used / MICROSECONDS))
        for (call, where), used in longest
    )


def _listed(
    spans: list[Span], within: Intervals, wanted: Callable[[str], bool] = lambda _: True
) -> tuple[HostShare, ...]:
    """The names that were innermost longest in a set of time, with how often each was entered at all."""
    entered = Counter(name for _, _, name in spans if wanted(name))
    return tuple(
        HostShare(name=name.removeprefix(MODULE), count=entered[name], seconds=_rounded(used / MICROSECONDS))
        for name, used in shares(innermost(spans, wanted), within)[:MOST_LISTED]
    )


def _shared(times: Mapping[str, float]) -> dict[str, float]:
    items = dict(times)
    whole = sum(items.values()) or 1.0
    return {name: _rounded(used / whole) for name, used in sorted(items.items(), key=lambda item: -item[1])}


def _rounded(value: float) -> float:
    return round(value, 6)
