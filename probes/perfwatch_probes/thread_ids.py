"""From what py-spy calls a thread to the thread id under which /proc knows it.

CPython 3.11 and newer keep the kernel's id of each thread; for older ones py-spy (without pausing the process) has only
the ``pthread_t`` handle, the address of the C library's own record of the thread, which holds the id. And an id that a
process has for itself is another one outside its PID namespace. Both are translated here, and every answer is checked
against /proc/PID/task, so that a wrong guess becomes "not known".
"""

import os
import struct
from collections.abc import Container, Iterable
from pathlib import Path

LARGEST_TID = 2**22  # PID_MAX_LIMIT of the kernel; a handle is an address and much larger
# Offset of ``tid`` in struct pthread: glibc x86-64, glibc aarch64, musl x86-64, musl aarch64.
_TID_OFFSETS = (720, 208, 48, 32)
_HEAD_BYTES = 1024
_TID = struct.Struct("=I")


class ThreadIds:
    """Translates, and remembers handles (reading memory is the dear part).

    Args:
        proc: root of /proc.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._handles: dict[tuple[int, int], int] = {}

    def forget(self, alive: Container[int]) -> None:
        """Let go of the handles of processes that are not among these."""
        self._handles = {key: tid for key, tid in self._handles.items() if key[0] in alive}

    def resolve(self, pid: int, names: Iterable[int]) -> dict[int, int]:
        """Thread id for each name (a thread id, ours or the process' own, or a pthread handle); 0 where not known.

        Never raises: a process that ends meanwhile has no known threads.
        """
        tasks = self._tasks(pid)
        found: dict[int, int] = {}
        outside: dict[int, int] | None = None  # read once, and only where it is needed: a file for each thread
        for name in names:
            if name in tasks or not tasks:
                found[name] = name if name <= LARGEST_TID else 0
                continue
            if outside is None:
                outside = self._outside(pid, tasks)
            tid = self._from_handle(pid, name, tasks, outside) if name > LARGEST_TID else name
            found[name] = tid if tid in tasks else outside.get(tid, 0)
        return found

    def _from_handle(self, pid: int, handle: int, tasks: set[int], outside: dict[int, int]) -> int:
        """The id in the C library's record; a record is reused for a new thread, hence the check of the remembered."""
        remembered = self._handles.get((pid, handle))
        if remembered in tasks:
            return remembered
        try:
            descriptor = os.open(self._proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            head = os.pread(descriptor, _HEAD_BYTES, handle)
        except (OSError, OverflowError):
            return 0
        finally:
            os.close(descriptor)
        for offset in _TID_OFFSETS:
            if offset + _TID.size <= len(head) and (
                (tid := _TID.unpack_from(head, offset)[0]) in tasks or tid in outside
            ):
                self._handles[pid, handle] = tid
                return int(tid)
        return 0

    def _tasks(self, pid: int) -> set[int]:
        try:
            return {int(name) for name in os.listdir(self._proc / str(pid) / "task")}
        except OSError:
            return set()

    def _outside(self, pid: int, tasks: set[int]) -> dict[int, int]:
        """The process' own numbers of its threads -> ours; empty when it shares our PID namespace."""
        translated = {}
        for tid in tasks:
            try:
                status = (self._proc / str(pid) / "task" / str(tid) / "status").read_text()
            except OSError:
                continue
            numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
            if len(numbers) < 2:
                return {}
            translated[int(numbers[-1])] = tid
        return translated
