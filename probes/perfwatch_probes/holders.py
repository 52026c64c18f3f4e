"""Which processes hold an open pipe, socket or file: one pass over every readable /proc/PID/fd, kept for one look.

Only links are read, never the things that they name.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_pairs

# Bounds of one pass: 40,000 descriptors take 0.5 s. Processes named first (the job's) are always looked at first, then those of their
# users: another user's open files must not use up the pass. What one process has too many of is left out alone.
MOST_DESCRIPTORS = 40_000
MOST_SECONDS = 0.5
MOST_EVENTFDS = 2_000  # of which the details are read


@dataclass(frozen=True)
class Holder:
    """One open descriptor of one process."""

    pid: int
    fd: int


class Holders:
    """The index, filled at the first question. Make a new one for each look.

    Args:
        filesystem: where /proc is.
        first: processes to look at before all others.
        now: seconds, monotonic; ends the pass at ``MOST_SECONDS``.

    ``complete`` says, after the first question, whether the pass reached every process; processes that we may not
    read (other users') are never in it. Cost: 12 us of CPU a descriptor.
    """

    def __init__(
        self, filesystem: Filesystem, first: Iterable[int] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._filesystem = filesystem
        self._first = tuple(first)
        self._now = now
        self._by_target: dict[str, list[Holder]] | None = None
        self.complete = True

    def of(self, target: str) -> list[Holder]:
        """Descriptors whose link reads ``target`` ("pipe:[12]", "socket:[34]", a path)."""
        if self._by_target is None:
            self._by_target = self._scan()
        return self._by_target.get(target, [])

    def pids(self, target: str) -> tuple[int, ...]:
        """Processes that hold it, ascending."""
        return tuple(sorted({holder.pid for holder in self.of(target)}))

    def ends(self, target: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(readers, writers) of a pipe or FIFO."""
        readers, writers = set(), set()
        for holder in self.of(target):
            try:
                access = access_of(read_fdinfo(self._filesystem, holder.pid, holder.fd))
            except Unavailable:  # closed meanwhile
                continue
            if "r" in access:
                readers.add(holder.pid)
            if "w" in access:
                writers.add(holder.pid)
        return tuple(sorted(readers)), tuple(sorted(writers))

    def of_eventfd(self, target: str, number: str) -> tuple[int, ...]:
        """Processes that hold the eventfd of this number, ascending. All eventfds share one link; ``eventfd-id`` tells them apart."""
        found = set()
        for holder in self.of(target)[:MOST_EVENTFDS]:
            try:
                info = parse_pairs(read_fdinfo(self._filesystem, holder.pid, holder.fd))
            except Unavailable:  # closed meanwhile
                continue
            if info.get("eventfd-id") == number:
                found.add(holder.pid)
        return tuple(sorted(found))

    def _scan(self) -> dict[str, list[Holder]]:
        found: dict[str, list[Holder]] = {}
        ends = self._now() + MOST_SECONDS
        left = MOST_DESCRIPTORS
        for pid in self._order():
            folder = f"{self._filesystem.proc}/{pid}/fd"
            try:
                names = self._filesystem.listdir(folder)
            except Unavailable:
                continue
            if self._now() > ends:
                self.complete = False
                break
            if left < len(names):
                self.complete = False
                continue
            left -= len(names)
            for name in names:
                try:
                    found.setdefault(self._filesystem.readlink(f"{folder}/{name}"), []).append(Holder(pid, int(name)))
                except Unavailable:
                    continue
        return found

    def _order(self) -> list[int]:
        """The processes named first, then others of the same users, then all the others."""
        users = {self._user(pid) for pid in self._first}
        rest = sorted(self._filesystem.processes(), key=lambda pid: self._user(pid) not in users)
        return list(dict.fromkeys((*self._first, *rest)))

    def _user(self, pid: int) -> int:
        try:
            return self._filesystem.owner(pid)
        except Unavailable:
            return -1


def socket_inodes(filesystem: Filesystem, pid: int) -> set[int]:
    """Of the sockets that a process holds open. Raises Unavailable where its descriptors may not be seen."""
    folder, found = f"{filesystem.proc}/{pid}/fd", set()
    for name in filesystem.listdir(folder):
        try:
            target = filesystem.readlink(f"{folder}/{name}")
        except Unavailable:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def read_fdinfo(filesystem: Filesystem, pid: int, fd: int) -> str:
    """/proc/PID/fdinfo/FD."""
    return filesystem.read_text(f"{filesystem.proc}/{pid}/fdinfo/{fd}")


def access_of(fdinfo: str) -> str:
    """r, w or rw, from the flags that the file was opened with; empty where they are missing or O_PATH."""
    flags = parse_pairs(fdinfo).get("flags", "")
    if not flags or int(flags, 8) & os.O_PATH:
        return ""
    return {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}.get(int(flags, 8) & os.O_ACCMODE, "")
