"""What a drill may need of the machine, and checks for it. A drill whose needs are not met is skipped with the reason."""

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x20000  # linux/sched.h


def _root() -> str | None:
    return None if os.geteuid() == 0 else "needs root: run perfwatch drill with sudo"


def _fuse() -> str | None:
    if os.geteuid() != 0:
        return _root()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse: in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"
    return _mount_namespace()


def _mount_namespace() -> str | None:
    child = os.fork()  # unshare in a child: our own namespace stays
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0 else 1)
    _, status = os.waitpid(child, 0)
    return None if status == 0 else "needs to mount: in a container, start it with --cap-add SYS_ADMIN"


def _cgroup_v1_cpu() -> str | None:
    controller = Path("/sys/fs/cgroup/cpu")
    if not (controller / "cpu.cfs_quota_us").exists() and not (controller / "cgroup.procs").exists():
        return "needs the cpu controller of cgroup v1 at /sys/fs/cgroup/cpu"
    return None if os.access(controller, os.W_OK) else "may not make groups below /sys/fs/cgroup/cpu: run as root"


def _cgroup_v2_cpu() -> str | None:
    root = Path("/sys/fs/cgroup")
    try:
        controllers = (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        return "needs cgroup v2 at /sys/fs/cgroup"
    if "cpu" not in controllers:
        return "needs the cpu controller of cgroup v2: echo +cpu > /sys/fs/cgroup/cgroup.subtree_control"
    return None if os.access(root, os.W_OK) else "may not make groups below /sys/fs/cgroup: run as root"


def _cgroup_cpu() -> str | None:
    return None if _cgroup_v1_cpu() is None else _cgroup_v2_cpu()


def _memory_cgroup() -> str | None:
    own = next((line for line in Path("/proc/self/cgroup").read_text().split() if "memory" in line.split(":")[1]), None)
    group = Path("/sys/fs/cgroup/memory" + own.split(":", 2)[2] if own else "/sys/fs/cgroup")
    if not (group / "memory.limit_in_bytes").exists() and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "needs the memory controller of cgroup v1 or v2 at /sys/fs/cgroup"
    return None if os.access(group, os.W_OK) else f"may not make groups below {group}: run as root"


def _pty() -> str | None:
    return None if os.access("/dev/ptmx", os.R_OK | os.W_OK) else "needs /dev/ptmx"


def _compiler() -> str | None:
    return None if shutil.which("cc") or shutil.which("gcc") else "needs a C compiler: apt install gcc"


def _gpu(devices: Path = Path("/dev")) -> str | None:
    return None if any(devices.glob("nvidia[0-9]*")) else "needs an NVIDIA GPU: none is among the device files"


def _gpus(count: int, devices: Path = Path("/dev"), shared: bool = False) -> str | None:
    found = len(list(devices.glob("nvidia[0-9]*")))
    enough = found > 0 if shared else found >= count
    return None if enough else f"needs {count} NVIDIA GPUs: {found or 'none'} among the device files"


def _shared_cards() -> bool:
    """True if the drills may put several ranks on one card (PERFWATCH_DRILL_SHARE_CARDS=1), as if on several hosts."""
    return os.environ.get("PERFWATCH_DRILL_SHARE_CARDS") == "1"


def _cores(least: int, ranks: str) -> str | None:
    """Ranks that compute all the time are healthy only where each has a CPU; two more are for who watches them."""
    usable = len(os.sched_getaffinity(0))
    return None if usable >= least else f"needs {least} CPUs, for {ranks} ranks and who watches them: may use {usable}"


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "fuse": _fuse,
    "cgroup_v1_cpu": _cgroup_v1_cpu,
    "cgroup_v2_cpu": _cgroup_v2_cpu,
    "cgroup_cpu": _cgroup_cpu,
    "memory_cgroup": _memory_cgroup,
    "mount": _mount_namespace,
    "pty": _pty,
    "compiler": _compiler,
    "six_cores": lambda: _cores(6, "four"),
    "ten_cores": lambda: _cores(10, "eight"),
    "gpu": _gpu,
    "two_gpus": lambda: _gpus(2, shared=_shared_cards()),
    "four_gpus": lambda: _gpus(4, shared=_shared_cards()),
}


def unmet(needs: tuple[str, ...]) -> str | None:
    """Say what is missing for a drill with these ``needs`` (keys of NEEDS), or None when all is there."""
    reasons = [reason for need in needs if (reason := NEEDS[need]()) is not None]
    return "; ".join(reasons) or None
