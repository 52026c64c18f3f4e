"""Check if the driver lets us read a GPU's performance counters (ncu, GPU metrics of nsys). Tracing needs no permission.

The setting is in ``/proc/driver/nvidia/params`` (``RmProfilingAdminOnly: 1``); CAP_SYS_ADMIN lifts it, and
CAP_PERFMON in newer drivers. Without it ncu fails with ERR_NVGPUCTRPERM, but only after the job has started.
"""

from pathlib import Path

from perfwatch.errors import PermissionDenied

_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38  # linux/capability.h
REFUSAL = "ERR_NVGPUCTRPERM"
FIX = (
    "as root on the host: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf,\n"
    "then reload the driver or reboot; in a container: docker run --cap-add SYS_ADMIN, or securityContext.capabilities.add\n"
    "[SYS_ADMIN] in Kubernetes; or run it as root: sudo perfwatch ..."
)


def check_counters(proc: Path = Path("/proc")) -> None:
    """Return when the counters may be read, or when nothing is known against it. Raises PermissionDenied with the fix."""
    if _restricted(proc) and not _privileged(proc):
        raise PermissionDenied(
            f"the driver keeps performance counters for administrators ({REFUSAL}: RmProfilingAdminOnly is 1) "
            "and this user has neither CAP_SYS_ADMIN nor CAP_PERFMON",
            FIX,
        )


def refused(text: str) -> PermissionDenied | None:
    """The error that ncu's or nsys' own words amount to, if they speak of the counters."""
    if REFUSAL not in text:
        return None
    return PermissionDenied(f"the driver refused the performance counters ({REFUSAL})", FIX)


def _restricted(proc: Path) -> bool:
    try:
        lines = (proc / "driver/nvidia/params").read_text().splitlines()
    except OSError:
        return False
    return any(line.split() == ["RmProfilingAdminOnly:", "1"] for line in lines)


def _privileged(proc: Path) -> bool:
    try:
        lines = (proc / "self/status").read_text().splitlines()
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return bool(effective >> _CAP_SYS_ADMIN & 1 or effective >> _CAP_PERFMON & 1)
