"""Which process has accepted a connection of ours: where several jobs share NCCL's RAS port, one of ours or another job's.

The kernel hands each connection to any of those that listen (SO_REUSEPORT). Its socket diagnostics name the accepted
socket, and /proc/PID/fd whose it is: so no other job's service has to be asked to find that out.
"""

import socket
import struct
from collections.abc import Collection

from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.nccl_address import MOST_ASKED
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sock_diag import other_end


class Acceptors:
    """The job's processes, and what each had open before we connected: an accepted socket is none of that.

    Args:
        filesystem: where /proc is.
        pids: the job's processes on this machine.

    Cost: a listing of each process' descriptors, and a link read for each new one; reading all links of eight ranks would
    be 50 ms for each connection.
    """

    def __init__(self, filesystem: Filesystem, pids: Collection[int]) -> None:
        self._filesystem = filesystem
        self._pids = tuple(pids)[:MOST_ASKED]
        self._complete = len(pids) <= MOST_ASKED
        self._before = {pid: frozenset(self._open(pid) or ()) for pid in self._pids}

    def ours(self, connection: socket.socket) -> bool | None:
        """True if a process of the job has accepted it; None where that cannot be told."""
        try:
            accepted = other_end(connection)
        except (OSError, struct.error):  # refused, or an answer that is not the kernel's
            return None
        if accepted is None:
            return None
        told = self._complete
        for pid in self._pids:
            numbers = self._open(pid)
            if numbers is None:
                told = False
            elif any(self._holds(pid, number, accepted.inode) for number in numbers - self._before[pid]):
                return True
        return False if told else None

    def _open(self, pid: int) -> frozenset[str] | None:
        """The numbers of its descriptors, none of a process that is gone; None where they may not be seen."""
        try:
            return frozenset(self._filesystem.listdir(f"{self._filesystem.proc}/{pid}/fd"))
        except Absent:
            return frozenset()
        except Unavailable:
            return None

    def _holds(self, pid: int, number: str, inode: int) -> bool:
        try:
            return self._filesystem.readlink(f"{self._filesystem.proc}/{pid}/fd/{number}") == f"socket:[{inode}]"
        except Unavailable:  # closed meanwhile
            return False
