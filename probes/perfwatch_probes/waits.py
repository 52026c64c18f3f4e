"""The waits of many threads of one process: their system calls decoded with the memory behind them.

Reading /proc/PID/mem and /proc/PID/maps waits for the memory lock of the process, so this runs in a killable child; without
memory it still names descriptors and locks, and can be done anywhere.

A futex between processes is named by what is mapped where its word lies: device, inode and offset are the same in every
process that shares it, the address is not. /proc/PID/maps is read once per process and sweep, and only where a thread waits for
such a futex. It says numbers of the kernel's, no path is opened. Needs ptrace permission, as memory does.
"""

import bisect
import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from perfwatch_probes.bounds import MAPS_BYTES
from perfwatch_probes.filesystem import Filesystem, unavailable
from perfwatch_probes.mounts import parse_mountinfo, parse_remote_mapping
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Wait
from perfwatch_probes.syscalls import decode

# "7f1c2a400000-7f1c2a401000 rw-s 00000000 00:19 1187                     /dev/shm/sem.mp-x7 (deleted)"
_SHARED_MAPPING = re.compile(
    rb"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) ..[-x]s (?P<offset>[0-9a-f]+) "
    rb"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+)(?P<path>.*)$",
    re.M,
)

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
    return _placed(filesystem, pid, waits) if memory else waits


def _placed(filesystem: Filesystem, pid: int, waits: dict[int, Wait]) -> dict[int, Wait]:
    """Futexes between processes with the file that holds their word, as far as the mappings may be read."""
    addresses = {wait.futex_address for wait in waits.values() if wait.shared and wait.futex_address is not None}
    if not addresses:
        return waits
    try:
        words = shared_words(filesystem.read_bytes(f"{filesystem.proc}/{pid}/maps", MAPS_BYTES), addresses)
    except Unavailable:
        return waits
    return {
        tid: msgspec.structs.replace(wait, **words[wait.futex_address])
        if wait.shared and wait.futex_address in words
        else wait
        for tid, wait in waits.items()
    }


def shared_words(maps: bytes, addresses: Iterable[int]) -> dict[int, dict[str, str | int]]:
    """By address, the fields of ``Wait`` that say which file is mapped there and where in it the word lies.

    Args:
        maps: the content of /proc/PID/maps; private and anonymous mappings are passed over.
        addresses: of words; those in no shared mapping are left out.
    """
    found: dict[int, dict[str, str | int]] = {}
    wanted = sorted(addresses)
    for mapping in _SHARED_MAPPING.finditer(maps):
        start, end = int(mapping["start"], 16), int(mapping["end"], 16)
        for address in wanted[bisect.bisect_left(wanted, start) : bisect.bisect_left(wanted, end)]:
            found[address] = {
                "futex_device": f"{int(mapping['major'], 16)}:{int(mapping['minor'], 16)}",
                "futex_inode": int(mapping["inode"]),
                "futex_offset_bytes": int(mapping["offset"], 16) + address - start,
                "futex_unlinked": mapping["path"].endswith(b" (deleted)"),
            }
    return found


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
