"""Regular files that a process holds open for writing, how large they are and when they last changed.

A log that grows is progress where no step counter is; a checkpoint that grows is a benign pause. The list comes from
/proc/PID/fd and fdinfo, which cannot block; the stat goes through /proc/PID/fd/N in a killable child, because the file
may be on a mount that does not answer. Of a log that has fallen silent the last lines tell how regularly it was written: a guest
(``perfwatch_probes.guest``) opens it by its path.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Hosts
from perfwatch_probes.log_lines import alike_lines
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import FileGrowth, ProbeCall

STAT_DEADLINE_SECONDS = 0.25
SILENT_SECONDS = 30.0  # without a write: a log that is written now needs no looking into
MOST_FILES = 32  # per process; the lowest descriptors, among them stdout and stderr
# Of each process, the lowest: without its limit raised (ulimit -n) none has more. They take 37 ms at most, 36 us each.
MOST_LOOKED_AT = 1024
MOST_LATE = 2  # per look: after two stats that did not come back the storage is sick, and the rest would hang too
_NOT_OUTPUT = ("/dev/", "/proc/", "/sys/", "/memfd:", "/anon_hugepage")


@dataclass(frozen=True)
class OpenFile:
    """A file that a process has open. modified: wall time of its last change. identity: device and inode."""

    size_bytes: int
    modified: float
    identity: tuple[int, int]


class OutputProbe:
    """Looks at the files that processes write.

    Args:
        caller: does each stat under a deadline.
        hosts: where a log is read.
        filesystem: where /proc is.
        clock: wall time in seconds, as the modification times are.
    """

    NAME = "output"
    NEEDS = "the same user, or CAP_SYS_PTRACE"
    COST = "0.1 ms per process and 50 us per open file; 0.5 ms for one that was not written for half a minute"

    def __init__(
        self,
        caller: Caller,
        hosts: Hosts,
        filesystem: Filesystem | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._caller, self._hosts = caller, hosts
        self._filesystem, self._clock = filesystem or Filesystem(), clock

    def look(self, pids: Sequence[int] = ()) -> Iterator[FileGrowth | ProbeCall]:
        """One reading per file, and a ProbeCall for each stat that did not come back (which is evidence by itself).

        Raises Unavailable when no process lets us list its files.
        """
        denied: Unavailable | None = None
        listed: list[tuple[int, list[tuple[int, str]]]] = []
        for pid in pids:
            try:
                listed.append((pid, self._open_for_writing(pid)))
            except Unavailable as unavailable:
                denied = unavailable
        if denied is not None and not listed:
            raise denied
        return self._grown(listed)

    def _grown(self, listed: list[tuple[int, list[tuple[int, str]]]]) -> Iterator[FileGrowth | ProbeCall]:
        late = 0
        for pid, files in listed:
            for fd, path in files:
                if late >= MOST_LATE:
                    return
                began = time.monotonic()
                link = self._filesystem.proc / str(pid) / "fd" / str(fd)
                try:
                    file = self._caller.call(open_file, str(link), deadline_seconds=STAT_DEADLINE_SECONDS)
                except OSError:
                    continue  # closed in the meantime
                except Unavailable as unavailable:
                    late += 1
                    reason = f"stat of {path} (fd {fd} of pid {pid}): {unavailable.reason}"
                    yield _late(pid, time.monotonic() - began, reason)
                    continue
                yield FileGrowth(
                    pid=pid,
                    fd=fd,
                    path=path,
                    size_bytes=file.size_bytes,
                    modified_ago_seconds=max(0.0, self._clock() - file.modified),
                    alike_lines=self._alike(pid, path, file),
                )

    def _alike(self, pid: int, path: str, file: OpenFile) -> int | None:
        """``alike_lines`` of a log that is not written just now; None where its user cannot read it by its path any more."""
        if self._clock() - file.modified < SILENT_SECONDS:
            return None
        try:
            return self._hosts.inside(pid).call(
                alike_lines, path, file.identity, deadline_seconds=STAT_DEADLINE_SECONDS
            )
        except (Unavailable, OSError, ValueError):
            return None

    def _open_for_writing(self, pid: int) -> list[tuple[int, str]]:
        folder = self._filesystem.proc / str(pid)
        found: dict[str, int] = {}  # one descriptor per file: stdout and stderr are often the same
        for fd in sorted(int(name) for name in self._filesystem.listdir(folder / "fd"))[:MOST_LOOKED_AT]:
            if len(found) == MOST_FILES:
                break
            try:
                target = self._filesystem.readlink(folder / "fd" / str(fd))
                if not target.startswith("/") or target.startswith(_NOT_OUTPUT):
                    continue
                flags = self._filesystem.read_text(folder / "fdinfo" / str(fd))
            except Unavailable:
                continue
            if is_writable(flags):
                found.setdefault(target, fd)
        return [(fd, path) for path, fd in found.items()]


def is_writable(fdinfo: str) -> bool:
    """True if the ``flags`` of a /proc/PID/fdinfo file (octal) say that it is open for writing, and not a folder."""
    for line in fdinfo.splitlines():
        if line.startswith("flags:"):
            flags = int(line.split()[1], 8)
            return flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) and not flags & os.O_PATH
    return False


def open_file(link: str) -> OpenFile:
    """What stat(2) says of an open file, by its link in /proc. Raises OSError; can block on a dead mount."""
    status = os.stat(link)
    return OpenFile(status.st_size, status.st_mtime, (status.st_dev, status.st_ino))


def _late(pid: int, duration_seconds: float, reason: str) -> ProbeCall:
    return ProbeCall(
        probe=OutputProbe.NAME,
        entity=f"pid {pid}",
        duration_seconds=duration_seconds,
        outcome="unavailable",
        reason=reason,
        advice="check the file system: timeout 5 df on that path",
    )
