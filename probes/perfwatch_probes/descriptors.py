"""What is behind a descriptor that a thread waits on: pipe, socket, file or tty, on which mount, and who holds the
other end.

Source: /proc/PID/{fd,fdinfo,mountinfo} and /proc/locks. The file itself is never opened. A named FIFO or a folder
cannot be told from a file by its link, so one stat per open file is made, in a killable child, and its lateness is
tolerated. A path that is not open yet is asked for by a guest (``perfwatch_probes.guest``).
"""

import os
import re
import stat as modes
import time
from collections import Counter
from collections.abc import Callable, Iterable

from perfwatch_probes import guest
from perfwatch_probes.deadline import Caller
from perfwatch_probes.file_locks import lock_holders, started_by
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Hosts
from perfwatch_probes.holders import Holders, access_of, read_fdinfo
from perfwatch_probes.mounts import REMOTE, Mount, parse_mountinfo
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import program
from perfwatch_probes.readings import Descriptor, Socket, Thread
from perfwatch_probes.sockets import Sockets
from perfwatch_probes.stat import parse_pairs
from perfwatch_probes.terminals import is_controlling, other_side

NAME = "descriptors"
NEEDS = "the same user as the job, or CAP_SYS_PTRACE"
COST = "60 us a descriptor, and 12 us per open descriptor of the machine where a pipe or socket is among them"

STAT_DEADLINE_SECONDS = 0.3  # a healthy local or network file system answers in milliseconds

MOST_NAMED = 3  # holders of a lock, by what they run
MOST_CONTESTED = 256  # descriptors that are looked through
# Of one epoll instance, the lowest: a server opens what it listens on, and what wakes it, before its visitors come.
WATCHED_LIMIT = 64

_ANONYMOUS = re.compile(r"(\w+):\[(\d+)\]")
_EVENTS = {"[eventfd]": "eventfd", "[eventpoll]": "epoll", "[pidfd]": "pidfd"}
_TERMINAL = re.compile(r"/dev/(?:pts/\d+|tty\w*|console|ptmx)(?: \(deleted\))?")
_LOCK = re.compile(r"\d+: (?:POSIX|FLOCK|OFDLCK)\s+\w+\s+(?:READ|WRITE)\s+(\d+) (\w+):(\w+):(\d+)\s")


def describe(
    filesystem: Filesystem,
    pid: int,
    fds: Iterable[int],
    child: Caller,
    holders: Holders,
    sockets: Sockets | None = None,
) -> list[Descriptor]:
    """Readings of these descriptors, by number; one that is closed meanwhile is left out.

    Args:
        filesystem: where /proc is.
        pid: the process.
        fds: its descriptors of interest.
        child: where a path may be looked at.
        holders: the index of this look, for the other ends of pipes and the owners of locks.
        sockets: fills ``Descriptor.socket``; None leaves it out.

    Raises Unavailable when the process is gone or its descriptors may not be read.
    """
    folder = f"{filesystem.proc}/{pid}/fd"
    links = {}
    for fd in sorted(set(fds)):
        try:
            links[fd] = filesystem.readlink(f"{folder}/{fd}")
        except Unavailable:
            filesystem.listdir(folder)  # raises if it is the process, not the descriptor, that cannot be read
    mounts = _mounts(filesystem, pid)
    inodes = {
        fd: int(match[2])
        for fd, link in links.items()
        if (match := _ANONYMOUS.fullmatch(link)) and match[1] == "socket"
    }
    known = sockets.look(pid, inodes.values(), holders) if sockets and inodes else {}
    return [
        _describe_one(filesystem, pid, fd, link, mounts, child, holders, known.get(inodes.get(fd, -1)))
        for fd, link in links.items()
    ]


def _describe_one(
    filesystem: Filesystem,
    pid: int,
    fd: int,
    link: str,
    mounts: dict[str, Mount],
    child: Caller,
    holders: Holders,
    socket: Socket | None,
) -> Descriptor:
    try:
        text = read_fdinfo(filesystem, pid, fd)
    except Unavailable:
        text = ""
    info = parse_pairs(text)
    kind, inode = kind_of(link)
    if inode is None and "ino" in info:  # Linux 5.14
        inode = int(info["ino"])
    if kind == "file":
        kind = _kind_of_path(filesystem, pid, fd, child)
    mount = mounts.get(info.get("mnt_id", ""))
    locking = lock_holders(filesystem, mount.device if mount else None, inode, link, holders) if kind == "file" else ()
    readers, writers = holders.ends(link) if kind in ("pipe", "fifo") else ((), ())
    if kind == "eventfd" and "eventfd-id" in info:  # Linux 5.2
        readers = writers = holders.of_eventfd(link, info["eventfd-id"])
    return Descriptor(
        pid=pid,
        fd=fd,
        kind=kind,
        target=link,
        access=access_of(text),
        inode=inode,
        mount=mount.point if mount else None,
        filesystem=mount.filesystem if mount else None,
        device=(mount.source if "/" in mount.source or ":" in mount.source else mount.device) if mount else None,
        position_bytes=int(info["pos"]) if "pos" in info and kind == "file" else None,
        readers=readers,
        writers=writers,
        socket=socket,
        watched=parse_watched(text),
        watched_pid=int(info["Pid"]) if kind == "pidfd" and "Pid" in info else None,
        controlling=is_controlling(filesystem, pid, fd, child) if kind == "tty" else None,
        other_side=other_side(filesystem, pid, link, info, holders) if kind == "tty" else (),
        lock_holders=locking,
        holders_run=tuple(program(filesystem, one, child) for one in locking[:MOST_NAMED]),
        holders_started=started_by(filesystem, locking),
    )


class Contested:
    """Files on which a process holds a lock, of main threads that nap: a library may sleep, try, and sleep again.

    Its own process counts where it has the file open twice, as two connections to one database. SQLite does so, and no call of it
    is ever seen blocked. What was found is told once more when it is over, so that a reading of it can be taken back.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._found: dict[int, set[int]] = {}

    def fds(self, thread: Thread) -> set[int]:
        """Descriptors of its process that are to be described now."""
        if thread.tid != thread.pid:
            return set()
        naps = thread.wait is not None and thread.wait.kind == "sleep"
        now = self._look(thread.pid) if naps else set()
        before = self._found.pop(thread.pid, set())
        if now:
            self._found[thread.pid] = now
        return now | before

    def _look(self, pid: int) -> set[int]:
        filesystem = self._filesystem
        try:
            locks = filesystem.read_text(filesystem.proc / "locks").splitlines()
            # Locks to read are shared: databases keep them for as long as they are open, and no process waits for those alone.
            alone = (match for line in locks if " WRITE " in line and (match := _LOCK.match(line)))
            held = {(int(match[4]), int(match[1]) == pid) for match in alone}
            fds = sorted(int(name) for name in filesystem.listdir(f"{filesystem.proc}/{pid}/fd")) if held else []
        except Unavailable:
            return set()
        inodes = {fd: _inode(filesystem, pid, fd) for fd in fds[:MOST_CONTESTED]}
        opened = Counter(inodes.values())
        return {fd for fd, at in inodes.items() if (at, False) in held or (opened[at] > 1 and (at, True) in held)}


def _inode(filesystem: Filesystem, pid: int, fd: int) -> int | None:
    try:
        told = parse_pairs(read_fdinfo(filesystem, pid, fd)).get("ino")  # Linux 5.14
    except Unavailable:
        return None
    return int(told) if told is not None else None


OPENING = -1  # the number of a path that has no descriptor yet


def opening(filesystem: Filesystem, pid: int, path: str, hosts: Hosts) -> Descriptor:
    """What a thread opens or asks about by its path: the mount that it lies on and, where that is a local one, its kind.

    A path on a mount that another machine or process answers is not touched: that mount may be what does not answer.
    """
    mount = max(
        (
            one
            for one in _mounts(filesystem, pid).values()
            if os.path.join(path, "").startswith(os.path.join(one.point, ""))
        ),
        key=lambda one: len(one.point),
        default=None,
    )
    kind = "file"
    if mount is not None and not REMOTE.fullmatch(mount.filesystem):
        try:
            kind, _ = hosts.inside(pid).call(kind_and_change, path, deadline_seconds=STAT_DEADLINE_SECONDS)
        except (Unavailable, OSError):
            pass  # it is not there yet, or does not answer
    return Descriptor(
        pid=pid,
        fd=OPENING,
        kind=kind,
        target=path,
        mount=mount.point if mount else None,
        filesystem=mount.filesystem if mount else None,
        device=mount.device if mount else None,
    )


AWAITED = -2  # the number of a path that a loop looks for


def awaited(
    filesystem: Filesystem, pid: int, path: str, hosts: Hosts, clock: Callable[[], float] = time.time
) -> Descriptor:
    """A path that a process looks for again and again, as the process sees it: whether it is there, and since when unchanged.

    The process itself asks and is answered, so the mount does answer; a guest asks all the same.
    Raises Unavailable when it is not known whether it is there.
    """
    there = os.path.join(filesystem.readlink(filesystem.proc / str(pid) / "cwd"), path)
    try:
        kind, changed = hosts.inside(pid).call(kind_and_change, there, deadline_seconds=STAT_DEADLINE_SECONDS)
    except (FileNotFoundError, NotADirectoryError):
        return Descriptor(pid=pid, fd=AWAITED, kind="missing", target=path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be looked at: {error.strerror}") from error
    ago = max(0.0, clock() - changed)
    return Descriptor(pid=pid, fd=AWAITED, kind=kind, target=path, changed_ago_seconds=ago)


def kind_of(link: str) -> tuple[str, int | None]:
    """(kind, inode) as far as the text of the link tells; a path counts as a file."""
    if match := _ANONYMOUS.fullmatch(link):
        return (match[1] if match[1] in ("pipe", "socket") else "other"), int(match[2])
    if link.startswith("anon_inode:"):
        return _EVENTS.get(link.removeprefix("anon_inode:"), "other"), None
    if _TERMINAL.fullmatch(link):
        return "tty", None
    if link.startswith("/dev/") and not link.startswith("/dev/shm/"):
        return "other", None
    return "file", None


def parse_watched(fdinfo: str) -> tuple[int, ...]:
    """Descriptors that an epoll instance watches: of very many the lowest ``WATCHED_LIMIT``, for each is looked at."""
    lines = (line.split() for line in fdinfo.splitlines() if line.startswith("tfd:"))
    return tuple(sorted(int(words[1]) for words in lines)[:WATCHED_LIMIT])


def stat_kind(link: str) -> str:
    """What kind of file is open behind a link in /proc. Runs in a killable child: the mount may be dead."""
    return _kind(os.stat(link).st_mode)


def kind_and_change(path: str) -> tuple[str, float]:
    """What kind of file a path leads to, and the wall time when its text, name or rights last changed. Runs in a guest."""
    status = guest.state_of(path)
    return _kind(status.st_mode), max(status.st_mtime, status.st_ctime)


def _kind(mode: int) -> str:
    if modes.S_ISFIFO(mode):
        return "fifo"
    if modes.S_ISDIR(mode):
        return "directory"
    return "file" if modes.S_ISREG(mode) else "other"


def _kind_of_path(filesystem: Filesystem, pid: int, fd: int, child: Caller) -> str:
    try:
        return child.call(stat_kind, f"{filesystem.proc}/{pid}/fd/{fd}", deadline_seconds=STAT_DEADLINE_SECONDS)
    except (Unavailable, OSError):
        return "file"


def _mounts(filesystem: Filesystem, pid: int) -> dict[str, Mount]:
    try:
        return parse_mountinfo(filesystem.read_text(f"{filesystem.proc}/{pid}/mountinfo"))
    except Unavailable:
        return {}
