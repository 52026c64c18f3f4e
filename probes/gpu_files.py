"""The driver's device files that a process holds open. Source: the links in /proc/PID/fd (same user, or CAP_SYS_PTRACE).

Reading a link waits for nothing: not for the process' memory lock, and not for the device.
"""

import re
from dataclasses import dataclass

from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.probe import Unavailable

_CARD = re.compile(r"/dev/nvidia(\d+)")
_UVM = "/dev/nvidia-uvm"  # opened when CUDA is initialised; tools that only ask NVML do without


@dataclass(frozen=True)
class DeviceFiles:
    """What a process holds. ``cuda``: the CUDA driver is initialised in it; ``minors``: N of each /dev/nvidiaN."""

    cuda: bool
    minors: frozenset[int]


def device_files(filesystem: Filesystem, pid: int) -> DeviceFiles:
    """The device files of a process.

    Cost: 2 us an open file. Raises Unavailable when it has ended or belongs to somebody else.
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
