"""A job under Nsight Compute from its start: what ``run --arm ncu`` prepares. Slow and opt-in; ``run`` prints a warning.

ncu intercepts every CUDA call of the job for all of its life. The window is a range that the job opens itself: the agent
calls cudaProfilerStart when ``kernels-open`` appears in the job's place, and cudaProfilerStop when it is removed.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures.nsight import under_ncu
from perfwatch.captures.nsight.finding import Run, Tool, find, options
from perfwatch.captures.nsight.ncu_command import OLDEST, Choice, armed_command
from perfwatch.captures.nsight.permission import check_counters
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.armed import write_armed
from perfwatch.processes.place import private_folder

KIND = "ncu"
DOOR = "PERFWATCH_KERNEL_WINDOW"  # tells the agent to look for the window at each step
MOST_KERNELS = 2000  # of a job's whole life: ncu holds them in memory


def arm(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    place: Path,
    run: Run,
    proc: Path = Path("/proc"),
    disk: Path = Path("/var/tmp"),
) -> tuple[str, ...]:
    """The command that starts the job under ncu.

    Raises CaptureUnavailable without a usable ncu, PermissionDenied where the counters are closed, OSError where the report has
    no folder that is ours.
    """
    check_counters(proc)
    tool = find(KIND, environment, run)
    check_age(tool, options(tool, run))
    folder = _report_folder(disk, place)
    private_folder(folder.parent)
    private_folder(folder)
    report, log = folder / "kernels.ncu-rep", folder / "ncu.log"
    write_armed(place, KIND, {"ncu": tool.path, "version": tool.version_text, "report": str(report), "log": str(log)})
    return (
        sys.executable,
        "-I",
        under_ncu.__file__,
        *armed_command(tool, Choice(count=MOST_KERNELS), report, log, command),
    )


def _report_folder(disk: Path, place: Path) -> Path:
    """Where the ncu of this launcher writes: on disk, for its report outlives the job."""
    return disk / f"perfwatch-{os.getuid()}" / f"kernels-{place.name}-{os.getpid()}"


def check_age(tool: Tool, listed: frozenset[str]) -> None:
    """Raises CaptureUnavailable for a version that lacks an option that is needed."""
    if missing := sorted(OLDEST - listed):
        raise CaptureUnavailable(
            f"ncu {tool.version_text} ({tool.path}) is too old: it has no {', no '.join(missing)}",
            "install a newer one, or name it: PERFWATCH_NCU=PATH",
        )
