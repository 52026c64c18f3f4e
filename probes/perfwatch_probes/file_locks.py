"""Who holds a lock on a file, and what those have started: they work for it, perhaps.

Source: /proc/locks, and /proc/PID/fdinfo of those who have the file open, and /proc/PID/task/TID/children.
"""

import re

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders, read_fdinfo
from perfwatch_probes.probe import Unavailable

_TAKEN = re.compile(r"\d+: (?:POSIX|FLOCK|OFDLCK)\s+\w+\s+(?:READ|WRITE)\s+(-?\d+) (\w+):(\w+):(\d+)\s")
_OF_THE_OPEN_FILE = re.compile(r"^lock:\s+\d+: (?:FLOCK|OFDLCK)\s", re.MULTILINE)  # a POSIX lock is its process' alone
MOST_STARTED = 16


def parse_locks(text: str, device: str, inode: int) -> tuple[int, ...]:
    """Numbers of those who took a lock on this inode, ascending; those that wait ("->") are left out.

    An open file's lock is no process' (-1); one who has ended, or is of another PID namespace, may be shown as 0.

    Args:
        text: /proc/locks.
        device: major:minor, decimal, as mountinfo writes it.
        inode: of the file.
    """
    major, minor = (int(part) for part in device.split(":"))
    matches = (_TAKEN.match(line) for line in text.splitlines())
    at = ((int(match[1]), (int(match[2], 16), int(match[3], 16), int(match[4]))) for match in matches if match)
    return tuple(sorted({taker for taker, where in at if where == (major, minor, inode)}))


def lock_holders(
    filesystem: Filesystem, device: str | None, inode: int | None, link: str, holders: Holders
) -> tuple[int, ...]:
    """Processes that hold a lock on an open file.

    The kernel names who took it. Where that one has ended (``flock 9`` in a shell script), or the lock is an open file's own,
    those hold it who have that file open. Only then are they looked for: it takes a look at every open file of the machine.

    Args:
        filesystem: where /proc is.
        device: major:minor of the file's mount; None where it is not known.
        inode: of the file.
        link: what the descriptor's link reads.
        holders: the index of this look.
    """
    if device is None or inode is None:
        return ()
    try:
        took = parse_locks(filesystem.read_text(filesystem.proc / "locks"), device, inode)
    except Unavailable:
        return ()
    living = tuple(pid for pid in took if pid > 0 and _tasks(filesystem, pid))
    if living or not took:
        return living
    return tuple(sorted({one.pid for one in holders.of(link) if _has_locked(filesystem, one.pid, one.fd)}))


def started_by(filesystem: Filesystem, pids: tuple[int, ...]) -> tuple[int, ...]:
    """What processes have started, and what that has, without themselves; none where the kernel does not tell."""
    found = list(pids)
    for pid in found:
        if len(found) >= MOST_STARTED + len(pids):
            break
        found += [child for child in _children(filesystem, pid) if child not in found]
    return tuple(sorted(found[len(pids) :][:MOST_STARTED]))


def _children(filesystem: Filesystem, pid: int) -> list[int]:
    found: list[int] = []
    for tid in _tasks(filesystem, pid):
        try:
            text = filesystem.read_text(f"{filesystem.proc}/{pid}/task/{tid}/children")
        except Unavailable:
            continue
        found += [int(one) for one in text.split()]
    return found


def _tasks(filesystem: Filesystem, pid: int) -> list[int]:
    try:
        return filesystem.tasks(pid)
    except Unavailable:
        return []


def _has_locked(filesystem: Filesystem, pid: int, fd: int) -> bool:
    try:
        return _OF_THE_OPEN_FILE.search(read_fdinfo(filesystem, pid, fd)) is not None
    except Unavailable:
        return False
