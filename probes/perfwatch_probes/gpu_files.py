"""The driver's device files that a process holds open. Source: the links in /proc/PID/fd (same user, or CAP_SYS_PTRACE).

Reading a link waits for nothing: not for the process' memory lock, and not for the device.
"""

import re
from dataclasses import dataclass

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

_CARD = re.compile(r"/dev/nvidia(\d+)")
_UVM = "/dev/nvidia-uvm"  # opened when CUDA is initialised; by newer drivers' NVML too
HOST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


@dataclass(frozen=True)
class DeviceFiles:
    """What a process holds. ``cuda``: the CUDA driver may be initialised in it; ``minors``: N of each /dev/nvidiaN."""

    cuda: bool
    minors: frozenset[int]


def device_files(filesystem: Filesystem, pid: int) -> DeviceFiles:
    """The device files of a process.

    Cost: 2 us an open file. Raises Unavailable when it has ended or belongs to another user.
    """
    folder = filesystem.proc / str(pid) / "fd"
    targets = []
    for name in filesystem.listdir(folder):
        try:
            targets.append(filesystem.readlink(folder / name))
        except Unavailable:
            continue  # closed meanwhile
    minors = (match[1] for target in targets if (match := _CARD.fullmatch(target)))
    return DeviceFiles(_UVM in targets, frozenset(int(minor) for minor in minors))


def sees_host_pids(filesystem: Filesystem) -> bool:
    """True if our pids are those of the host, which NVML uses."""
    try:
        return filesystem.readlink(filesystem.proc / "self/ns/pid") == HOST_PID_NAMESPACE
    except Unavailable:
        return False


def local_pid(filesystem: Filesystem, pid: int, minor: int | None) -> int | None:
    """The pid as we see it of a process that NVML names by its pid on the host; None when that cannot be known.

    Outside of containers the two are the same. In a PID namespace of our own a process of that number may be another one:
    only one that holds the device file of the card (/dev/nvidiaN, ``minor``) on which it is listed is taken.
    """
    if sees_host_pids(filesystem):
        return pid
    try:
        return pid if minor in device_files(filesystem, pid).minors else None
    except Unavailable:
        return None
