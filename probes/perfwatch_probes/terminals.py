"""Which terminal an open one is: the process' own, at which a user may type, or a line to a device or to another process.

A serial line (/dev/ttyUSB0) and a pseudo-terminal that a program has made are terminals, too, and no user types there.

Source: /proc/PID/{stat,fd,fdinfo}. The terminal itself is never opened.
"""

import os

from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders, read_fdinfo
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_pairs, parse_terminal

STAT_DEADLINE_SECONDS = 0.3  # as of any path: this one answers at once
_MASTERS = ("/dev/ptmx", "/dev/pts/ptmx")  # each open one is the other side of a terminal of its own


def device_of(path: str) -> int:
    """The number of a device. Runs in a killable child."""
    return os.stat(path).st_rdev


def is_controlling(filesystem: Filesystem, pid: int, fd: int, child: Caller) -> bool | None:
    """True if it is the process' controlling terminal, by whatever name it was opened; None where that cannot be told."""
    try:
        own = parse_terminal(filesystem.read_text(f"{filesystem.proc}/{pid}/stat"))
        device = child.call(device_of, f"{filesystem.proc}/{pid}/fd/{fd}", deadline_seconds=STAT_DEADLINE_SECONDS)
    except (Unavailable, OSError):
        return None
    return own == device


def other_side(filesystem: Filesystem, pid: int, link: str, info: dict[str, str], holders: Holders) -> tuple[int, ...]:
    """The other processes that hold the other side of a pseudo-terminal, whichever side this one is.

    The details of an open /dev/ptmx name the terminal that it is the master of ("tty-index", Linux 4.15).
    """
    if link in _MASTERS:
        found = set(holders.pids(f"/dev/pts/{info['tty-index']}")) if "tty-index" in info else set()
    else:
        masters = [one for target in _MASTERS for one in holders.of(target)] if link.startswith("/dev/pts/") else []
        found = {one.pid for one in masters if _index(filesystem, one.pid, one.fd) == link.rpartition("/")[2]}
    return tuple(sorted(found - {pid}))


def _index(filesystem: Filesystem, pid: int, fd: int) -> str | None:
    try:
        return parse_pairs(read_fdinfo(filesystem, pid, fd)).get("tty-index")
    except Unavailable:  # closed meanwhile
        return None
