"""A job that Nsight Compute can attach to later: what ``run --arm ncu-attach`` prepares. For ncu from 2026.2.1 on.

The agent loads ncu's library into each process before CUDA starts there; the library then sleeps. ncu attaches for one window and
detaches. The environment that the library expects is the one that NVIDIA's own nsight-python sets.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures.nsight.finding import ASKING_SECONDS, Run, Tool, find, options
from perfwatch.captures.nsight.ncu_command import can_attach
from perfwatch.captures.nsight.ncu_session import DOOR, KIND, check_age
from perfwatch.captures.nsight.permission import check_counters
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.armed import write_armed

LIBRARY = "PERFWATCH_KERNEL_LIBRARY"  # tells the agent what to load
LIBRARY_NAME = "libcuda-injection.so"
INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")  # a process takes one library by each of these
WARNING = (
    "ncu's library is loaded into every process of the job that imports torch, and sleeps until perfwatch capture ncu. This way "
    "in follows NVIDIA's description (nvComputeInj.h) and has not been tried with a real ncu, only with a stand-in: try it "
    "first on a job that may be lost"
)


def arm(environment: Mapping[str, str], place: Path, run: Run, proc: Path = Path("/proc")) -> dict[str, str]:
    """The environment in which the job can be attached to.

    Raises CaptureUnavailable where ncu is too old, has no such library, or another tool is to be loaded in its stead;
    PermissionDenied where the counters are closed.
    """
    check_counters(proc)
    for name in INJECTED:
        if name in environment:
            raise CaptureUnavailable(f"{name} is set: another tool will be in this job", f"unset {name}")
    tool = find("ncu", environment, run)
    listed = options(tool, run)
    check_age(tool, listed)
    if not can_attach(listed):
        raise CaptureUnavailable(
            f"ncu {tool.version_text} ({tool.path}) does not attach to a process, 2026.2.1 does",
            "install a newer one, or name it: PERFWATCH_NCU=PATH; --arm ncu starts the job under this one",
        )
    library = _library(tool, run)
    write_armed(place, KIND, {"ncu": tool.path, "version": tool.version_text, "attaches": "yes"})
    return {
        **environment,
        DOOR: "1",
        LIBRARY: str(library),
        "NVTX_INJECTION64_PATH": str(library),
        "NV_COMPUTE_PROFILER_PERFWORKS_DIR": str(library.parent),
        "NV_COMPUTE_PROFILER_IN_PROCESS": "1",
    }


def _library(tool: Tool, run: Run) -> Path:
    said = run((tool.path, "--list-injection-path-64"), ASKING_SECONDS, None).output.decode(errors="replace")
    folder = next(iter(said.splitlines()), "").strip()
    library = Path(folder) / LIBRARY_NAME
    if not os.path.isabs(folder) or not library.is_file():
        raise CaptureUnavailable(
            f"ncu {tool.version_text} names no folder with a {LIBRARY_NAME}: {folder[:200] or 'nothing'}",
            f"see what it says: {tool.path} --list-injection-path-64",
        )
    return library
