"""The waits of many threads of one process: their system calls decoded with the memory behind them.

Reading /proc/PID/mem waits for the memory lock of the process, so this runs in a killable child; without memory it
still names descriptors and locks, and can be done anywhere.
"""

import os
from collections.abc import Mapping

import msgspec

from perfwatch_probes.filesystem import Filesystem, unavailable
from perfwatch_probes.mounts import parse_mountinfo, parse_remote_mapping
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Wait
from perfwatch_probes.syscalls import decode

# (content of the syscall file, state, wait channel, seconds blocked) by thread id
Calls = Mapping[int, tuple[str, str, str | None, float | None]]


def decode_all(filesystem: Filesystem, pid: int, calls: Calls, memory: bool) -> dict[int, Wait]:
    """Waits by thread id; threads that do not wait are left out.

    Args:
        filesystem: where /proc is.
        pid: the process.
        calls: what each thread's files say.
        memory: whether to follow pointers.
    """
    reader = Memory(filesystem, pid) if memory else None
    waits = {}
    for tid, (text, state, wchan, blocked) in calls.items():
        read = reader.read if reader else _no_memory
        if wait := decode(text, read, state=state, wchan=wchan, blocked_seconds=blocked):
            waits[tid] = _joining(filesystem, pid, tid, wait) if wait.joined_tid is not None else wait
            if wait.path:
                waits[tid] = msgspec.structs.replace(wait, path=absolute(filesystem, pid, wait))
    return waits


def _joining(filesystem: Filesystem, pid: int, tid: int, wait: Wait) -> Wait:
    """A wait for the end of another thread of the process (``pthread_join``) is none between processes; any other is no join.

    A semaphore of ``multiprocessing`` waits for ever as well, while its word is 0. Seen from another PID namespace the number
    is that of no thread, and the wait stays one between processes.
    """
    try:
        joins = wait.joined_tid != tid and filesystem.has_task(pid, wait.joined_tid or 0)
    except Unavailable:
        joins = False
    return msgspec.structs.replace(wait, shared=False) if joins else msgspec.structs.replace(wait, joined_tid=None)


def absolute(filesystem: Filesystem, pid: int, wait: Wait) -> str | None:
    """The path of a wait, with the folder that it is relative to, as far as that may be read."""
    if wait.path is None or wait.path.startswith("/"):
        return wait.path
    folder = "cwd" if wait.fd is None else f"fd/{wait.fd}"
    try:
        return os.path.join(filesystem.readlink(f"{filesystem.proc}/{pid}/{folder}"), wait.path)
    except Unavailable:
        return wait.path


def mapped_from_afar(filesystem: Filesystem, pid: int) -> str | None:
    """The file behind a page fault, where only one comes from a remote mount. Raises Unavailable."""
    folder = f"{filesystem.proc}/{pid}"
    mounts = parse_mountinfo(filesystem.read_text(f"{folder}/mountinfo"))
    return parse_remote_mapping(filesystem.read_text(f"{folder}/maps"), mounts)


class Memory:
    """The memory of a process, opened once."""

    def __init__(self, filesystem: Filesystem, pid: int) -> None:
        self._path = f"{filesystem.proc}/{pid}/mem"
        try:
            self._descriptor: int | None = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def read(self, address: int, size: int) -> bytes:
        """At most ``size`` bytes, fewer at the end of a mapping. Raises Unavailable where nothing can be read."""
        if self._descriptor is None:
            raise Unavailable(f"{self._path} cannot be opened")
        try:
            return os.pread(self._descriptor, size, address)
        except OSError as error:
            raise unavailable(error, self._path) from None
        except OverflowError:
            raise Unavailable(f"{self._path} has no address {address:#x}") from None

    def __del__(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)


def _no_memory(address: int, size: int) -> bytes:
    raise Unavailable("the memory is not read")
