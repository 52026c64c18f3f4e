"""Reads the files of /proc that can block on a lock of their process, in a child that can be killed.

A read of /proc/PID/io, syscall, environ and, on Linux 6.18, stat takes ``exec_update_lock``. The process holds that lock during
``execve``, and ``execve`` waits for the memory lock. Any user can make a process that never releases either: another process that
shares the memory blocks in ``mmap`` on a FUSE mount of that user. The read then blocks until its process is killed.

Processes of our own user are read directly: they could stop us anyway. Root cannot tell which processes are its own, because a
process can make root the owner of its folder. A child of ``deadline`` reads directly: it already has a deadline.

Cost: 35 us more for each file.
"""

import errno
import os
import re
import threading
import time

from perfwatch_probes.deadline import KillableChild, in_child
from perfwatch_probes.probe import Unavailable

# Measured: 0.02 ms. A loaded machine may need longer, and a process that is missed is taken for one that has ended.
PATIENT_SECONDS, IMPATIENT_SECONDS = 1.0, 0.02
MOST_PATIENT = 2  # late reads of one user's processes within a minute; the next ones get the short deadline
REMEMBERED_SECONDS = 60.0
WAITING_SECONDS = 2.0  # for another thread that reads
AGAIN_SECONDS = 30.0  # a process that was late is left alone for so long
_LOCKED = re.compile(
    r"/proc/(\d+)/(?:task/\d+/)?(?:stat|io|syscall|stack|cmdline|environ|auxv|personality|maps|smaps|smaps_rollup)"
)


class LockedFiles:
    """One child for all such reads of this process; made at the first, and again after a fork."""

    def __init__(self) -> None:
        self._child: KillableChild | None = None
        self._turn = threading.Lock()
        self._late: list[tuple[float, int]] = []  # when, and whose process
        self._left_alone: dict[int, float] = {}  # until when, by pid

    def disown(self) -> None:
        """In a forked process: the child is its parent's."""
        if self._child is not None:
            self._child.disown()
        self._child, self._turn = None, threading.Lock()

    def read(self, pid: int, path: str, most_bytes: int) -> bytes:
        """The first so many bytes. Raises OSError, TimeoutError among them."""
        if not self._turn.acquire(timeout=WAITING_SECONDS):
            raise _timeout()
        try:
            return self._read(pid, path, most_bytes)
        finally:
            self._turn.release()

    def _read(self, pid: int, path: str, most_bytes: int) -> bytes:
        began = time.monotonic()
        if began < self._left_alone.get(pid, 0.0):
            raise _timeout()
        self._late = [(at, uid) for at, uid in self._late if began - at < REMEMBERED_SECONDS]
        hasty = bool(self._late) and sum(uid == user_of(pid) for _, uid in self._late) >= MOST_PATIENT
        deadline_seconds = IMPATIENT_SECONDS if hasty else PATIENT_SECONDS
        if self._child is None:
            self._child = KillableChild()
        try:
            try:
                return self._child.call(read, path, most_bytes, deadline_seconds=deadline_seconds)
            except Unavailable:
                if time.monotonic() - began >= deadline_seconds:
                    raise
                return self._child.call(
                    read, path, most_bytes, deadline_seconds=deadline_seconds
                )  # it was killed before
        except Unavailable as why:
            now = time.monotonic()
            if (
                now - began < deadline_seconds
            ):  # no child can be started, or each is killed: the process has no part in it
                raise OSError(errno.EAGAIN, why.reason) from None
            self._late.append((now, user_of(pid)))
            self._left_alone = {one: until for one, until in self._left_alone.items() if until > now}
            self._left_alone[pid] = now + AGAIN_SECONDS
            raise _timeout() from None


def _timeout() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "the process keeps a lock of the kernel")


LOCKED_FILES = LockedFiles()
os.register_at_fork(after_in_child=LOCKED_FILES.disown)


def read_kernel_file(path: str, most_bytes: int) -> bytes:
    """The first so many bytes of a file of the kernel's, with a deadline where it may wait for another user's process. Raises OSError."""
    found = _LOCKED.fullmatch(path)
    if found is None or in_child() or _is_ours(pid := int(found[1])):
        return read(path, most_bytes)
    return LOCKED_FILES.read(pid, path, most_bytes)


def _is_ours(pid: int) -> bool:
    if pid == os.getpid():
        return True
    uid = os.geteuid()
    return uid != 0 and os.stat(f"/proc/{pid}").st_uid == uid


def user_of(pid: int) -> int:
    """Whose process it is, by a file that waits for no lock and that the process cannot give to root; -1 where it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return int(next(line for line in file if line.startswith(b"Uid:")).split()[1])
    except (OSError, StopIteration, ValueError, IndexError):
        return -1


_CHUNK_BYTES = 65536  # more than any file that a probe reads often, so that most files are one read and one end-of-file


def read(path: str, most_bytes: int) -> bytes:
    """The first so many bytes of a file, here and now. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = [os.read(descriptor, min(_CHUNK_BYTES, most_bytes))]
        left = most_bytes - len(chunks[0])
        while chunks[-1] and left:
            chunks.append(os.read(descriptor, min(_CHUNK_BYTES, left)))
            left -= len(chunks[-1])
        return b"".join(chunks)
    finally:
        os.close(descriptor)
