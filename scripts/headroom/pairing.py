"""What the pairs share: build each variant of a program, time the variants in turns, record a torch trace of each.

    python scripts/headroom/decoder.py NAME,... FOLDER    these pairs; writes FOLDER/NAME.json and its traces
    python scripts/headroom/decoder.py                    the names of this family

A program is one function from the levers that are off to one training step. The variants of a pair are ``off``, each lever
on by itself, and ``on``. ``off`` and ``on`` are traced (NAME-off.json.xz), the first of them again with Python stacks
(NAME-off-stacks.json.xz). A pair's answer (the levers that are off, and the one expected to bring most) stands beside it.
"""

import contextlib
import fcntl
import gc
import json
import lzma
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Step = Callable[[], Any]
Off = frozenset[str]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS, ROUND_SECONDS, WARM_STEPS = 5, 0.2, 4


@dataclass(frozen=True)
class Pair:
    """One program with levers off.

    Attributes:
        program: from the levers that are off to a step.
        off: the levers that are off, the one expected to bring most first; empty for a program that is tuned.
        instead: other levers that answer the same need, measured as well.
        steps: of the recorded window.
    """

    program: Callable[[Off], Step]
    off: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    steps: int = 3

    def variants(self) -> dict[str, Off]:
        """Name of each variant to the levers that it has off. A lever of ``instead`` is on by not being in the set."""
        every = (*self.off, *self.instead)
        kinds = {"off": frozenset(every)} if self.off else {}
        if len(every) > 1:
            kinds |= {one: frozenset(every) - {one} for one in every}
        return kinds | {"on": frozenset(self.instead)}


def main(pairs: dict[str, Pair]) -> None:
    """Run the pair that the command line names, or print the names."""
    if len(sys.argv) < 3:
        print(*pairs, sep="\n")
        return
    for name in sys.argv[1].split(","):
        record(name, pairs[name], Path(sys.argv[2]))


def record(name: str, pair: Pair, folder: Path) -> None:
    """Build, time, trace; the results as JSON in the folder."""
    result: dict[str, Any] = {"name": name, "off": pair.off, "instead": pair.instead, "torch": torch.__version__}
    result["card"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
    built: dict[str, Step] = {}
    began = time.monotonic()
    with _card(fcntl.LOCK_SH):
        for kind, off in pair.variants().items():
            torch.manual_seed(0)
            try:
                _settings(off)
                built[kind] = pair.program(off)
                for _ in range(WARM_STEPS):
                    built[kind]()
                _wait()
            except Exception as error:
                result.setdefault("failed", {})[kind] = f"{type(error).__name__}: {error}"[:500]
                built.pop(kind, None)
    result["built_seconds"] = round(time.monotonic() - began, 1)
    traces: list[Path] = []
    with _card(fcntl.LOCK_EX):
        began = time.monotonic()
        result["step_seconds"] = _timed(pair, built)
        result["peak_bytes"] = _peaks(pair, built)
        gc.collect()
        for kind, step in built.items() if "HEADROOM_TIMES_ALONE" not in os.environ else ():
            if kind in ("off", "on"):
                traces.append(_traced(pair, kind, step, folder / f"{name}-{kind}.json", stacks=False))
            if kind == "off" or not pair.off:
                traces.append(_traced(pair, kind, step, folder / f"{name}-{kind}-stacks.json", stacks=True))
        result["measured_seconds"] = round(time.monotonic() - began, 1)
    if dist.is_initialized() and dist.get_rank():
        return
    for path in traces:
        path.with_suffix(".json.xz").write_bytes(lzma.compress(path.read_bytes(), preset=3))
        path.unlink()
    _write(folder / f"{name}.json", result)


def _timed(pair: Pair, built: dict[str, Step]) -> dict[str, list[float]]:
    """Seconds a step of each variant, one figure a round, the variants in turns and each second round backwards."""
    counts: dict[str, int] = {}
    for kind, step in built.items():
        _settings(pair.variants()[kind])
        step()
        seconds = _burst(step, 2)
        counts[kind] = max(2, min(400, round(ROUND_SECONDS / seconds)))
    counts = _agreed(counts)
    found: dict[str, list[float]] = {kind: [] for kind in built}
    for turn in range(ROUNDS):
        order = list(built) if turn % 2 == 0 else list(built)[::-1]
        for kind in order:
            _settings(pair.variants()[kind])
            built[kind]()
            found[kind].append(_burst(built[kind], counts[kind]))
    return found


def _agreed(counts: dict[str, int]) -> dict[str, int]:
    """Rank 0's."""
    if not dist.is_initialized():
        return counts
    held = [counts]
    dist.broadcast_object_list(held)
    return held[0]


def _burst(step: Step, count: int) -> float:
    _wait()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    _wait()
    return (time.perf_counter() - begin) / count


def _traced(pair: Pair, kind: str, step: Step, path: Path, stacks: bool) -> Path:
    """The window of one variant, begun and ended between steps."""
    _settings(pair.variants()[kind])
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities):  # the first window of a process loads the profiler: not kept
        step()
        _wait()
    profile = torch.profiler.profile(
        activities=activities, record_shapes=True, with_stack=stacks, profile_memory=not stacks
    )
    step()
    _wait()
    with profile:
        for _ in range(pair.steps):
            step()
        _wait()
    if not dist.is_initialized() or dist.get_rank() == 0:
        # At once: the next window of the same process takes the memory that these times lie in, and they would all read zero.
        profile.export_chrome_trace(str(path))
    return path


def _peaks(pair: Pair, built: dict[str, Step]) -> dict[str, int]:
    """Most bytes that a step of each variant adds to what all variants hold between steps."""
    found = {}
    for kind, step in built.items() if DEVICE == "cuda" else ():
        _settings(pair.variants()[kind])
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        _wait()
        found[kind] = torch.cuda.max_memory_allocated() - held
    return found


def _settings(off: Off) -> None:
    """The switches of the whole process that a variant has."""
    torch.backends.cuda.matmul.allow_tf32 = "tf32" not in off
    torch.backends.cudnn.benchmark = "cudnn_benchmark" not in off


@contextlib.contextmanager
def _card(kind: int) -> Iterator[None]:
    """The card: shared while programs are built, alone while one is measured."""
    path = os.environ.get("HEADROOM_LOCK")
    if path is None:
        yield
        return
    with open(path, "a+") as file:
        fcntl.lockf(file, kind)  # not flock: workers that are forked meanwhile would hold it on
        yield


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _write(path: Path, result: dict[str, Any]) -> None:
    result["median_seconds"] = {kind: statistics.median(times) for kind, times in result["step_seconds"].items()}
    path.write_text(json.dumps(result, indent=1))


def autocast(off: Off) -> Any:
    """Bf16 where the lever is on."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled="mixed_precision" not in off)


def adam(parameters: Any, off: Off, **more: Any) -> torch.optim.Optimizer:
    """AdamW: fused, or one loop over the parameters where the lever is off."""
    loop = "fused_optimizer" in off
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False if loop else None, fused=None if loop else True, **more)


def compiled(model: Any, off: Off) -> Any:
    """The model, compiled where the lever is on."""
    return model if "compile" in off else torch.compile(model)


def captured(step: Step, off: Off) -> Step:
    """The whole step as one CUDA graph where the lever is on; what the step reads must stay where it is."""
    if "cuda_graphs" in off or DEVICE != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept: Step = step) -> None:  # what the step holds must outlive it: the graph only knows addresses
        graph.replay()

    return replay
