"""Cut a torch.profiler trace down to a few steps of what is read here: a fixture of some tens of kB out of megabytes.

    python scripts/trim_trace.py TRACE.json.{gz,xz} OUTPUT.json.gz [FIRST_STEP LAST_STEP]

Keeps the layout in which Kineto writes, the optimizer steps FIRST to LAST (default 1 to 2; 0 0 for the whole window), and of each
event the fields that ``perfwatch.traces.torch_events`` reads. Times count from the window's begin.
"""

import gzip
import json
import lzma
import sys
from typing import Any

KEPT = {
    "cpu_op",
    "user_annotation",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "python_function",
}
ARGUMENTS = (
    "correlation", "bytes", "External id", "Sequence number", "Fwd thread id", "Input Dims", "Input Strides", "Input type",
    "Concrete Inputs", "grid",
)  # fmt: skip
SHORTEST_FRAME_MICROSECONDS = 30.0
CALLS_WITHOUT_WORK = ("cudaEventQuery", "cudaStreamIsCapturing", "cudaGetErrorString", "cudaPeekAtLastError")


def main(source: str, target: str, first: int = 1, last: int = 2) -> None:
    """Read, cut, write."""
    with (lzma if source.endswith(".xz") else gzip).open(source) as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    ends = sorted(
        float(one["ts"]) + one["dur"]
        for one in events
        if one.get("cat") == "user_annotation" and one["name"].startswith("Optimizer.step")
    )
    begin, end = ends[first - 1] - 1, ends[last] + 1  # the end of the step before it is where the first begins
    if not last:
        begin, end = min(float(one["ts"]) for one in events if one.get("cat") == "cpu_op"), float("inf")
    inside = [one for one in events if one.get("ph") == "X" and one.get("cat") in KEPT and _in(one, begin, end)]
    kept = [
        _lean(one, begin)
        for one in inside
        if not one["name"].startswith(CALLS_WITHOUT_WORK)
        and (one["cat"] != "python_function" or float(one["dur"]) >= SHORTEST_FRAME_MICROSECONDS)
    ]
    kept.append({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
                 "ts": 0.0, "dur": round(min(end, max(ends) + 1e6) - begin, 3)})  # fmt: skip
    text = ",\n".join(f"  {{\n    {json.dumps(one)[1:-1]}\n  }}" for one in kept)
    with gzip.GzipFile(target, "wb", 9, mtime=0) as packed:
        cards = json.dumps(trace.get("deviceProperties", [])[:1])
        packed.write(
            f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {cards},\n  "traceEvents": [\n{text}\n  ]}}'.encode()
        )
    print(f"{len(kept)} of {len(events)} events")


def _in(one: dict[str, Any], begin: float, end: float) -> bool:
    return float(one["ts"]) < end and float(one["ts"]) + float(one["dur"]) > begin


def _lean(one: dict[str, Any], begin: float) -> dict[str, Any]:
    lean = {name: one[name] for name in ("ph", "cat", "name", "pid", "tid")}
    lean |= {"ts": round(float(one["ts"]) - begin, 3), "dur": round(float(one["dur"]), 3)}
    arguments = {name: one["args"][name] for name in ARGUMENTS if name in one.get("args", {})}
    return lean | ({"args": arguments} if arguments else {})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))
