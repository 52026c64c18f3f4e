"""When and how a process ends, told by the kernel to the holder of a handle on it, be it another's child.

A pidfd becomes readable the moment its process ends (pidfd_open(2), Linux 5.3), so no poll is needed once a
second and come too late for the zombie. From Linux 6.15 on it tells how the process ended even after its parent has reaped
it (PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h; measured on 6.18: a zombie's handle does not tell it
yet, /proc does). A handle asks for no permission, keeps no process and no pid, and delays nothing.
"""

import fcntl
import os
import resource
import select
import struct

MOST = (
    128  # handles; of the files that we may have open (1,024 by default) they leave the upper half to the other probes
)
_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info), of which the first 64 bytes are in every version
_INFO = struct.Struct("=Q52xi")  # mask, what is not asked for, exit_code as of wait(2)
_EXIT = 1 << 3


class Endings:
    """Handles on the processes of one job.

    Args:
        most: handles at a time; of further processes nothing is told.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._first_left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._handles: dict[int, int] = {}
        self._all = select.epoll()

    def hold(self, pid: int) -> None:
        """Take a handle on a process, unless it has one; the caller makes sure afterwards that it is still the one it knew."""
        if pid in self._handles or len(self._handles) >= self._most or not hasattr(os, "pidfd_open"):
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # it is gone, the kernel is old, or too many files are open: /proc must do
            return
        if handle >= self._first_left:  # the kernel gives out the lowest number that is free: half of them are taken
            os.close(handle)
            return
        self._all.register(handle, select.EPOLLIN | select.EPOLLONESHOT)
        self._handles[pid] = handle

    def fileno(self) -> int:
        """Readable when one of them has ended that ``news`` has not told."""
        return self._all.fileno()

    def news(self) -> bool:
        """True if one of them has ended since this was last asked."""
        return bool(self._all.poll(0))

    def release(self, pid: int) -> int | None:
        """Give the handle on a process back; its wait status where the kernel tells it, None where not."""
        handle = self._handles.pop(pid, None)
        if handle is None:
            return None
        try:
            return _wait_status(handle)
        finally:
            self._all.unregister(handle)  # closing does that only where no forked child of ours has it open as well
            os.close(handle)

    def close(self) -> None:
        """Give all of them back."""
        while self._handles:
            os.close(self._handles.popitem()[1])
        self._all.close()


def _wait_status(handle: int) -> int | None:
    asked = bytearray(64)
    _INFO.pack_into(asked, 0, _EXIT, 0)
    try:
        fcntl.ioctl(handle, _GET_INFO, asked)
    except OSError:  # ENOTTY: before 6.13; ESRCH: reaped, and before 6.15
        return None
    told, status = _INFO.unpack_from(asked)
    return status if told & _EXIT else None
