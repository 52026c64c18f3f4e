"""What a blocked call waits on: the open file, the other end of the pipe, the connection and its traffic."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from perfwatch_probes import readings as r
from perfwatch_probes.deadline import Caller
from perfwatch_probes.descriptors import Contested, awaited, describe, opening
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Hosts
from perfwatch_probes.holders import Holders
from perfwatch_probes.sockets import Sockets

FD_KINDS = frozenset("read write recv send accept connect poll lock sync ioctl stat".split())

Take = Callable[[str, str, Callable[[], Iterable[r.Reading]]], list[r.Reading]]


class Behind:
    """Looks at descriptors and connections.

    Args:
        filesystem: where /proc is.
        child: where what may block is asked of the kernel.
        hosts: where paths of the job are looked at.
        take: makes one call of one probe, and accounts for it.
    """

    def __init__(self, filesystem: Filesystem, child: Caller, hosts: Hosts, take: Take) -> None:
        self._filesystem = filesystem
        self._child, self._hosts = child, hosts
        self._take = take
        self._sockets = Sockets(filesystem, child)
        self._contested = Contested(filesystem)
        self._opened: set[tuple[int, str]] = set()

    def look(self, found: Iterable[r.Thread], known: Collection[int], sought: Mapping[int, str]) -> None:
        """The open files that blocked threads wait on, and the paths that they open.

        Args:
            found: the threads.
            known: the job's processes.
            sought: by process, the path for which it looks again and again.
        """
        for pid, path in sought.items():
            self._take("awaited", f"pid {pid}", partial(self._awaited, pid, path))
        wanted: dict[int, set[int]] = {}
        for thread in found:
            if thread.wait is not None and thread.wait.kind in ("open", "stat") and thread.wait.path:
                self._opening(thread.pid, thread.wait.path)
            fds = self._contested.fds(thread)
            if thread.wait is not None and thread.wait.kind in FD_KINDS:
                fds |= {polled.fd for polled in thread.wait.polled}
                fds |= set() if thread.wait.fd is None else {thread.wait.fd}
            if fds:
                wanted.setdefault(thread.pid, set()).update(fds)
        if not wanted:
            return
        holders = Holders(self._filesystem, first=known)
        for pid, fds in wanted.items():
            self._take("descriptors", f"pid {pid}", partial(self._describe, pid, fds, holders))

    def traffic(self, pids: Sequence[int]) -> None:
        """What the connections of each of these have carried so far."""
        for pid in pids:
            self._take("traffic", f"pid {pid}", partial(self._sockets.traffic, pid))

    def forget(self, known: Collection[int]) -> None:
        """Let go of what is remembered about processes that have ended."""
        self._opened = {one for one in self._opened if one[0] in known}

    def _describe(self, pid: int, fds: set[int], holders: Holders) -> list[r.Reading]:
        seen = describe(self._filesystem, pid, fds, self._child, holders, self._sockets)
        watched = {fd for file in seen for fd in file.watched} - fds  # behind an epoll instance
        return [*seen, *describe(self._filesystem, pid, watched, self._child, holders, self._sockets)]

    def _awaited(self, pid: int, path: str) -> list[r.Reading]:
        return [awaited(self._filesystem, pid, path, self._hosts)]

    def _opening(self, pid: int, path: str) -> None:
        """Asked once per path: it is the job's, and may not answer."""
        if (pid, path) not in self._opened:
            self._opened.add((pid, path))
            self._take("opening", f"pid {pid}", lambda: [opening(self._filesystem, pid, path, self._hosts)])
