"""The rooted way to /proc and /sys: every probe reads through a ``Filesystem``, so that a test can hand in a recorded
tree.

Only kernel files are read here. A path of the job (its data, its logs) may sit on a dead mount and is never touched
from this module: see ``deadline``.
"""

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perfwatch_probes.bounds import KERNEL_FILE_BYTES, MOST_NAMES
from perfwatch_probes.locked_files import read_kernel_file
from perfwatch_probes.probe import Unavailable

PERMISSION_ADVICE = (
    "run perfwatch as the user of that process, or with sudo, or give it CAP_SYS_PTRACE"
    " (docker run --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add [SYS_PTRACE])"
)

T = TypeVar("T")


class Absent(Unavailable):
    """There is no such file: the process ended, or this kernel does not have it."""


class Denied(Unavailable):
    """The kernel does not let us read it."""


def unavailable(error: OSError, path: str) -> Unavailable:
    """What an OSError on ``path`` means, as a state of the world with advice."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ESRCH, errno.ENOTDIR):
        return Absent(f"{path} is not there: the process ended or this kernel does not provide it")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"{path} cannot be read: {what}", PERMISSION_ADVICE)
    return Unavailable(f"{path} cannot be read: {what}")


@dataclass(frozen=True)
class Filesystem:
    """Roots of the kernel's file systems.

    Args:
        proc: where procfs is mounted.
        sys: where sysfs is mounted.
        dev: where the device files are; they are looked at, never opened.

    Paths given to the methods are full paths, made from the roots: ``filesystem.proc / "meminfo"``. Every method raises
    ``Absent`` (no such file or process), ``Denied`` (with advice) or plain ``Unavailable``. A file of a process that
    ends in the middle of the read may come back empty: that is left to the parser.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")

    def read_bytes(self, path: str | Path, most_bytes: int | None = None) -> bytes:
        """The first ``most_bytes`` of a file, ``KERNEL_FILE_BYTES`` by default: a job may make its files in /proc any size."""
        return _guarded(
            lambda name: read_kernel_file(name, KERNEL_FILE_BYTES if most_bytes is None else most_bytes), path
        )

    def read_text(self, path: str | Path) -> str:
        """As ``read_bytes``; bytes that are not UTF-8 become U+FFFD, for no recording could hold them."""
        return self.read_bytes(path).decode("utf-8", "replace")

    def readlink(self, path: str | Path) -> str:
        """The text of a symbolic link, not UTF-8 as in ``read_text``; the thing that it names is not touched."""
        return os.fsencode(_guarded(os.readlink, path)).decode("utf-8", "replace")

    def listdir(self, path: str | Path) -> list[str]:
        """Names in a folder, in no order; no more than ``MOST_NAMES``."""
        return _guarded(_names, path)

    def owner(self, pid: int) -> int:
        """The uid that owns the files of a process: its own, and root's where the process may not be dumped."""
        return _guarded(os.stat, f"{self.proc}/{pid}").st_uid

    def processes(self) -> list[int]:
        """Every PID that /proc shows (hidepid may hide those of other users), ascending."""
        return sorted(int(name) for name in self.listdir(self.proc) if name.isdigit())

    def tasks(self, pid: int) -> list[int]:
        """Thread ids of a process, ascending."""
        return sorted(int(name) for name in self.listdir(f"{self.proc}/{pid}/task"))

    def has_task(self, pid: int, tid: int) -> bool:
        """True if a process has this thread; the list of all of them is not read."""
        try:
            _guarded(os.stat, f"{self.proc}/{pid}/task/{tid}")
        except Absent:
            return False
        return True


def _guarded(read: Callable[[str], T], path: str | Path) -> T:
    name = str(path)
    try:
        return read(name)
    except OSError as error:
        raise unavailable(error, name) from None


def _names(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
