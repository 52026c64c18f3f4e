"""Connections of a process: state, both ends, when something last arrived, and which local process is the peer.

Two sources. /proc/PID/net/{tcp,tcp6,udp,udp6,unix} shows the network namespace of the process to every user. The
kernel's socket diagnostics add the times, bytes and unix peers, but answer for the namespace of the asker: for a job
in another one (a container seen from outside) the reader has to enter it, which wants CAP_SYS_ADMIN. Without it those
fields stay None.
"""

import ctypes
import os
import socket as net
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders, socket_inodes
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Socket, Traffic
from perfwatch_probes.sock_diag import TCP_STATES, Connection, address, ask_tcp, ask_unix

NAME = "sockets"
NEEDS = "nothing in the same network namespace; CAP_SYS_ADMIN for arrival times in another one"
COST = "1.3 ms for the sockets of a quiet machine, 10 us more for each connection"

FRESH_SECONDS = 0.5  # longer than a look at every process, shorter than the time between two
LOOK_DEADLINE_SECONDS = 1.0  # 10,000 connections take about 0.3 s
OTHER_NAMESPACE_ADVICE = (
    "run perfwatch inside the job's container, or as root (CAP_SYS_ADMIN) on the host, to see when its connections last"
    " received something"
)
# /proc/net/tcp walks a whole hash table of the kernel, 4 ms a time: read only where the diagnostics are refused.
_WITHOUT_DIAGNOSTICS = ("udp", "udp6")
_TABLES = ("tcp", "tcp6", *_WITHOUT_DIAGNOSTICS, "unix")
_EVERYWHERE = ("0.0.0.0", "[::]")  # where one listens on every address
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Table:
    """All sockets of one network namespace; ``gap`` says why the diagnostics are missing, empty when they are not."""

    connections: tuple[Connection, ...]
    gap: str = ""

    @cached_property
    def by_inode(self) -> dict[int, Connection]:
        """Each socket that a process can hold."""
        return {one.inode: one for one in self.connections if one.inode}

    def peers(self, one: Connection) -> list[Connection]:
        """The other end of a connection, and who listens there; of a socket that takes datagrams those that send to it."""
        if one.family == "unix":
            other = self.by_inode.get(one.peer_inode or 0)
            return [other] if other is not None and other.family == "unix" else self._senders.get(one.inode, [])
        if one.state == "LISTEN" or not one.family.startswith("tcp"):
            return []
        ends = [(one.peer, one.local), (one.peer, "")]
        if _is_local(one):
            ends += [(f"{host}:{one.peer.rpartition(':')[2]}", "") for host in _EVERYWHERE]
        return [other for end in ends for other in self._tcp.get(end, ())]

    @cached_property
    def _senders(self) -> dict[int, list[Connection]]:
        """By the unix socket that they are connected to."""
        found: dict[int, list[Connection]] = {}
        for one in self.connections:
            if one.peer_inode and one.inode:
                found.setdefault(one.peer_inode, []).append(one)
        return found

    @cached_property
    def _tcp(self) -> dict[tuple[str, str], list[Connection]]:
        """By (local, peer); listeners by (local, no peer)."""
        found: dict[tuple[str, str], list[Connection]] = {}
        for one in self.connections:
            if one.family.startswith("tcp"):
                found.setdefault((one.local, "" if one.state == "LISTEN" else one.peer), []).append(one)
        return found


class Sockets:
    """The tables of the namespaces that a job lives in, each kept for a moment, so that one look reads it once.

    Args:
        filesystem: where /proc is.
        child: where the namespace is entered and the tables are read.
        now: seconds, monotonic.
    """

    def __init__(self, filesystem: Filesystem, child: Caller, now: Callable[[], float] = time.monotonic) -> None:
        self._filesystem = filesystem
        self._child = child
        self._now = now
        self._tables: dict[str, tuple[float, Table]] = {}  # namespace -> (when read, table)

    @property
    def gaps(self) -> list[Unavailable]:
        """What the newest tables lack, and how to see it."""
        return [Unavailable(table.gap, OTHER_NAMESPACE_ADVICE) for _, table in self._tables.values() if table.gap]

    def look(self, pid: int, inodes: Iterable[int], holders: Holders) -> dict[int, Socket]:
        """Sockets by inode; one in no table (unconnected, another protocol) is left out. Never raises Unavailable."""
        table = self._table(pid)
        return {one.inode: reading(one, table, holders) for one in _held(table, set(inodes))}

    def traffic(self, pid: int) -> list[Traffic]:
        """What the TCP connections of a process have carried. Raises Unavailable: no such process, no right, no counters."""
        table = self._table(pid)
        if table.gap:
            raise Unavailable(table.gap, OTHER_NAMESPACE_ADVICE)
        held = _held(table, socket_inodes(self._filesystem, pid))
        mine = [one for one in held if one.received_bytes is not None]
        return [
            Traffic(
                pid=pid,
                connections=len(mine),
                received_bytes=sum(one.received_bytes or 0 for one in mine),
                sent_bytes=sum(one.sent_bytes or 0 for one in mine),
                queued_bytes=sum(one.send_queue_bytes or 0 for one in mine),
                retransmits=sum(one.retransmits or 0 for one in mine),
            )
        ]

    def _table(self, pid: int) -> Table:
        try:
            namespace = self._filesystem.readlink(f"{self._filesystem.proc}/{pid}/ns/net")
        except Unavailable:
            namespace = f"of process {pid}"
        read_at, table = self._tables.get(namespace, (float("-inf"), Table(())))
        if self._now() - read_at > FRESH_SECONDS:
            try:
                table = self._child.call(read_table, self._filesystem, pid, deadline_seconds=LOOK_DEADLINE_SECONDS)
            except Unavailable as late:
                table = Table((), late.reason)
            now = self._now()
            # A table that is not fresh is of no use, and a namespace or process that is gone would leave it for ever.
            self._tables = {name: kept for name, kept in self._tables.items() if now - kept[0] <= FRESH_SECONDS}
            self._tables[namespace] = (now, table)
        return table


def _held(table: Table, inodes: set[int]) -> list[Connection]:
    return [table.by_inode[inode] for inode in inodes if inode in table.by_inode]


def reading(one: Connection, table: Table, holders: Holders) -> Socket:
    """A connection with the processes at its other end, as far as they are on this machine and may be seen."""
    others = table.peers(one)
    established = [other for other in others if other.state != "LISTEN" and other.inode]
    # A connection that is not yet accepted has no owner: then the listener is the peer.
    pids = {pid for other in established or others for pid in holders.pids(f"socket:[{other.inode}]")}
    path = next((other.local for other in established if other.local), "") if one.family == "unix" else one.peer
    return Socket(
        family=one.family,
        state=one.state,
        local=one.local,
        peer=path,
        peer_inode=one.peer_inode,
        peer_pids=tuple(sorted(pids)),
        received_ago_seconds=one.received_ago_seconds,
        sent_ago_seconds=one.sent_ago_seconds,
        received_bytes=one.received_bytes,
        sent_bytes=one.sent_bytes,
        receive_queue_bytes=one.receive_queue_bytes,
        send_queue_bytes=one.send_queue_bytes,
        retransmits=one.retransmits,
    )


def _is_local(one: Connection) -> bool:
    """True if both ends have the same address, or the loopback's: then the peer is on this machine."""
    here, there = one.local.rpartition(":")[0], one.peer.rpartition(":")[0]
    return here == there or there.startswith("127.") or there == "[::1]"


def read_table(filesystem: Filesystem, pid: int) -> Table:
    """All sockets of the namespace of ``pid``. Runs in a killable child, which enters that namespace and comes back."""
    try:
        diagnosed = _in_namespace_of(filesystem, pid)
    except (OSError, struct.error) as error:  # refused, or an answer shorter than any kernel's that we know
        what = getattr(error, "strerror", None) or error
        reason = f"arrival times of the connections of process {pid} are not known: {what}"
        return Table(tuple(_from_proc(filesystem, pid, _TABLES)), reason)
    return Table((*diagnosed, *_from_proc(filesystem, pid, _WITHOUT_DIAGNOSTICS)))


def enter_network_of(filesystem: Filesystem, pid: int) -> None:
    """Move this process into the network namespace of ``pid``, for good: only for a process that is thrown away."""
    theirs = f"{filesystem.proc}/{pid}/ns/net"
    try:
        if os.readlink(theirs) == os.readlink("/proc/self/ns/net"):
            return
        there = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
    except OSError as error:
        reason = f"the network of process {pid} cannot be entered: {error.strerror or error}"
        raise Unavailable(reason, OTHER_NAMESPACE_ADVICE) from None


def listening(filesystem: Filesystem, pid: int) -> list[Connection]:
    """TCP sockets that listen in the namespace of ``pid``, which must be our own by now where the kernel is asked."""
    try:
        found = [*ask_tcp(net.AF_INET), *ask_tcp(net.AF_INET6)]
    except (OSError, struct.error):
        found = _from_proc(filesystem, pid, ("tcp", "tcp6"))
    return [one for one in found if one.state == "LISTEN"]


def _in_namespace_of(filesystem: Filesystem, pid: int) -> list[Connection]:
    theirs, ours = f"{filesystem.proc}/{pid}/ns/net", "/proc/self/ns/net"
    if os.readlink(theirs) == os.readlink(ours):
        return [*ask_tcp(net.AF_INET), *ask_tcp(net.AF_INET6), *ask_unix()]
    home = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(there)
        try:
            return [*ask_tcp(net.AF_INET), *ask_tcp(net.AF_INET6), *ask_unix()]
        finally:
            _enter(home)
    finally:
        os.close(home)
        os.close(there)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"entering its network namespace: {os.strerror(code)}")


def _from_proc(filesystem: Filesystem, pid: int, families: tuple[str, ...]) -> list[Connection]:
    found: list[Connection] = []
    for family in families:
        try:
            text = filesystem.read_text(f"{filesystem.proc}/{pid}/net/{family}")
        except Unavailable:
            continue
        found += parse_unix_table(text) if family == "unix" else parse_inet_table(text, family)
    return found


def parse_inet_table(text: str, family: str) -> list[Connection]:
    """/proc/net/tcp and its like. Addresses are 32-bit words of the machine's byte order, in hexadecimal."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10:
            continue
        sent, received = (int(part, 16) for part in fields[4].split(":"))
        state = int(fields[3], 16)
        listening = TCP_STATES[state : state + 1] == ["LISTEN"]
        found.append(
            Connection(
                inode=int(fields[9]),
                family=family,
                state=TCP_STATES[state] if state < len(TCP_STATES) else "UNKNOWN",
                local=_parse_address(fields[1]),
                peer=_parse_address(fields[2]),
                receive_queue_bytes=None if listening else received,
                send_queue_bytes=None if listening else sent,
            )
        )
    return found


def parse_unix_table(text: str) -> list[Connection]:
    """/proc/net/unix: no peers there, only states and paths."""
    states = {"01": "CLOSE", "02": "SYN_SENT", "03": "ESTABLISHED", "04": "CLOSING"}
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) < 7:
            continue
        listening = int(fields[3], 16) & 0x10000  # __SO_ACCEPTCON
        state = "LISTEN" if listening else states.get(fields[5], "UNKNOWN")
        path = fields[7] if len(fields) > 7 else ""
        found.append(Connection(inode=int(fields[6]), family="unix", state=state, local=path))
    return found


def _parse_address(text: str) -> str:
    host, port = text.split(":")
    words = (int(host[start : start + 8], 16).to_bytes(4, "little") for start in range(0, len(host), 8))
    return address(b"".join(words), int(port, 16))
