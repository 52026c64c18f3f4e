"""Connections of a process: recorded tables, peers on this machine, other namespaces, and living ones."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import Holders
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Socket
from perfwatch_probes.sock_diag import Connection
from perfwatch_probes.sockets import Sockets, Table, parse_inet_table, parse_unix_table, read_table, reading

LIVE = Filesystem()
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 1218 1 0 100 0 0 10 0
   1: 0100007F:9C40 0100007F:733C 01 00000009:00000007 00:00000000 00000000     0        0 1234 1 0 20 4 30 10 -1
   2: 0100007F:733C
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm
   0: 0000000000000000FFFF00000100007F:733C 0000000000000000FFFF00000100007F:9C40 01 00000000:00000000 00:0 0 0 0 1235 1
"""
UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 14 /run/my server.sock
0000000000000000: 00000003 00000000 00000000 0001 03 15
0000000000000000: 00000003 00000000 00000000 0001 03 16 @abstract
0000000000000000: 000000
"""


def test_recorded_tcp_table() -> None:
    """Addresses, states and queues of /proc/net/tcp; a torn line is left out."""
    listening, connected = parse_inet_table(TCP, "tcp")

    assert (listening.state, listening.local, listening.receive_queue_bytes) == ("LISTEN", "127.0.0.1:29500", None)
    assert (connected.state, connected.local, connected.peer) == ("ESTABLISHED", "127.0.0.1:40000", "127.0.0.1:29500")
    assert (connected.receive_queue_bytes, connected.send_queue_bytes, connected.inode) == (7, 9, 1234)


def test_recorded_tcp6_table_speaks_ipv4() -> None:
    """An IPv4 connection on an IPv6 socket is written like its other end."""
    (found,) = parse_inet_table(TCP6, "tcp6")

    assert (found.local, found.peer) == ("127.0.0.1:29500", "127.0.0.1:40000")


def test_recorded_unix_table() -> None:
    """States and paths of /proc/net/unix, a path with a space included."""
    found = parse_unix_table(UNIX)

    assert [(one.inode, one.state, one.local) for one in found] == [
        (14, "LISTEN", "/run/my server.sock"), (15, "ESTABLISHED", ""), (16, "ESTABLISHED", "@abstract"),
    ]  # fmt: skip


def own(root: Path, pid: int, inode: int) -> None:
    """A process that holds a socket."""
    (root / str(pid) / "fd").mkdir(parents=True)
    (root / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")


def test_peer_is_found_by_its_reversed_addresses(tmp_path: Path) -> None:
    """The process that holds the other end of a local connection, across the two IP families."""
    own(tmp_path, 10, 1234)
    own(tmp_path, 11, 1235)
    table = Table((*parse_inet_table(TCP, "tcp"), *parse_inet_table(TCP6, "tcp6")))
    _, one, other = table.connections

    assert reading(one, table, Holders(Filesystem(proc=tmp_path))).peer_pids == (11,)
    assert reading(other, table, Holders(Filesystem(proc=tmp_path))).peer_pids == (10,)


def test_peer_that_does_not_accept_is_the_listener(tmp_path: Path) -> None:
    """A connection that nobody has accepted leads to the process that listens there."""
    own(tmp_path, 12, 1218)
    table = Table(tuple(parse_inet_table(TCP, "tcp")))
    listener, one = table.connections

    assert reading(one, table, Holders(Filesystem(proc=tmp_path))).peer_pids == (12,)
    assert reading(listener, table, Holders(Filesystem(proc=tmp_path))).peer_pids == ()


@pytest.mark.parametrize(("peer", "pids"), [("127.0.0.1:80", (12,)), ("10.0.0.7:80", (12,)), ("10.0.0.8:80", ())])
def test_listener_on_every_address_is_a_peer_only_on_this_machine(
    tmp_path: Path, peer: str, pids: tuple[int, ...]
) -> None:
    """Somebody who listens on port 80 here is not the peer of a connection to port 80 of another machine."""
    own(tmp_path, 12, 5)
    one = Connection(inode=4, family="tcp", state="ESTABLISHED", local="10.0.0.7:4000", peer=peer)
    listener = Connection(inode=5, family="tcp6", state="LISTEN", local="[::]:80", peer="[::]:0")

    assert reading(one, Table((one, listener)), Holders(Filesystem(proc=tmp_path))).peer_pids == pids


def test_unix_peer_lends_its_path(tmp_path: Path) -> None:
    """A client's unix socket has no name; the server's has."""
    own(tmp_path, 12, 56)
    one = Connection(inode=55, family="unix", state="ESTABLISHED", peer_inode=56)
    server = Connection(inode=56, family="unix", state="ESTABLISHED", local="/run/x.sock", peer_inode=55)

    assert reading(one, Table((one, server)), Holders(Filesystem(proc=tmp_path))) == Socket(
        family="unix", state="ESTABLISHED", peer="/run/x.sock", peer_inode=56, peer_pids=(12,)
    )


def test_refused_namespace_leaves_the_table_and_says_so(tmp_path: Path) -> None:
    """Where another namespace may not be entered, states are there, times are unknown, and advice is given."""
    (tmp_path / "10" / "net").mkdir(parents=True)
    (tmp_path / "10" / "net" / "tcp").write_text(TCP)
    sockets = Sockets(Filesystem(proc=tmp_path), Inline())
    found = sockets.look(10, [1234, 999], Holders(Filesystem(proc=tmp_path)))

    assert set(found) == {1234}
    assert (found[1234].state, found[1234].receive_queue_bytes) == ("ESTABLISHED", 7)
    assert found[1234].received_ago_seconds is None
    assert "CAP_SYS_ADMIN" in sockets.gaps[0].advice


def test_late_table_is_a_gap() -> None:
    """When the tables do not come in time nothing is known, and that is said."""

    class Late(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            raise Unavailable("late")

    sockets = Sockets(LIVE, Late())

    assert sockets.look(os.getpid(), [1], Holders(LIVE)) == {}
    assert [gap.reason for gap in sockets.gaps] == ["late"]


def test_one_table_serves_one_look(tmp_path: Path) -> None:
    """Within a moment the tables are read once for all processes of a namespace; later they are read again."""
    reads: list[int] = []

    class Counting(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            reads.append(1)
            return super().call(function, *arguments, deadline_seconds=deadline_seconds)

    now = [0.0]
    sockets = Sockets(LIVE, Counting(), lambda: now[0])
    for moment in (0.0, 0.1, 5.0):
        now[0] = moment
        sockets.look(os.getpid(), [1], Holders(LIVE))

    assert len(reads) == 2


class Counted(tuple[Connection, ...]):
    """Connections that count how often somebody goes through all of them."""

    passes = 0

    def __iter__(self) -> Iterator[Connection]:
        """Once more."""
        self.passes += 1
        return super().__iter__()


class Tables(Inline):
    """Gives a table as it is, and counts how often."""

    def __init__(self, table: Table) -> None:
        self.table, self.reads = table, 0

    def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
        """The table."""
        self.reads += 1
        return self.table


def test_a_process_with_many_connections_costs_no_pass_over_all_for_each(tmp_path: Path) -> None:
    """They are gone through once by inode and once by their ends, however many are asked for, and asked for again."""
    count = 500
    own(tmp_path, 11, count)
    here, there = [f"10.0.0.1:{1000 + n}" for n in range(count)], [f"10.0.0.2:{1000 + n}" for n in range(count)]
    connections = Counted(
        Connection(inode=2 * n + side, family="tcp", state="ESTABLISHED", local=ends[side], peer=ends[1 - side])
        for n, ends in enumerate(zip(here, there, strict=True))
        for side in (0, 1)
    )
    sockets = Sockets(Filesystem(proc=tmp_path), Tables(Table(connections)), lambda: 0.0)
    for _ in range(2):
        found = sockets.look(11, range(1, 2 * count), Holders(Filesystem(proc=tmp_path)))

    assert len(found) == 2 * count - 1
    assert found[count + 1].peer_pids == (11,)
    assert connections.passes == 2


def test_the_tables_of_processes_that_have_ended_are_let_go(tmp_path: Path) -> None:
    """Each is in a namespace of its own, whose name is hidden, and serves for a moment."""
    now = [0.0]
    tables = Tables(Table((), "no right"))
    sockets = Sockets(Filesystem(proc=tmp_path), tables, lambda: now[0])
    for pid in range(100, 200):
        now[0] += 1.0
        sockets.look(pid, [1], Holders(Filesystem(proc=tmp_path)))

    assert tables.reads == 100
    assert len(sockets.gaps) == 1


@pytest.mark.live
def test_living_connection_and_its_peer(child: KillableChild) -> None:
    """A connection to ourselves: what arrived, when, and that we are the peer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        accepted.sendall(b"12345")
        client.recv(5)
        inode = os.fstat(client.fileno()).st_ino
        sockets = Sockets(LIVE, child)
        found = sockets.look(os.getpid(), [inode], Holders(LIVE, first=[os.getpid()]))[inode]

    assert (found.family, found.state, found.peer_pids) == ("tcp", "ESTABLISHED", (os.getpid(),))
    assert found.received_bytes == 5
    assert found.received_ago_seconds is not None
    assert sockets.gaps == []


@pytest.mark.live
def test_what_the_connections_of_a_process_have_carried(child: KillableChild) -> None:
    """Of both ends, which are ours: what arrived and was confirmed, and what waits in a window that nobody empties."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        before = Sockets(LIVE, child).traffic(os.getpid())[0]
        accepted.sendall(b"12345")
        client.recv(5)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 16))
        after = Sockets(LIVE, child).traffic(os.getpid())[0]

    assert after.connections == before.connections >= 2
    assert after.received_bytes - before.received_bytes > 5
    assert after.sent_bytes - before.sent_bytes > 5
    assert after.queued_bytes > before.queued_bytes


def test_without_counters_there_is_no_traffic(tmp_path: Path) -> None:
    """Where the diagnostics are refused the sums are not zero, but unknown."""
    (tmp_path / "10" / "net").mkdir(parents=True)
    (tmp_path / "10" / "net" / "tcp").write_text(TCP)

    with pytest.raises(Unavailable, match="arrival times"):
        Sockets(Filesystem(proc=tmp_path), Inline()).traffic(10)


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="entering a network namespace wants CAP_SYS_ADMIN")
def test_living_connection_in_another_namespace(child: KillableChild) -> None:
    """A job in its own network namespace is seen in there, and the reader comes back to ours."""
    program = (
        "import fcntl, os, socket, struct, sys\n"
        "probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "fcntl.ioctl(probe, 0x8914, struct.pack('16sH14x', b'lo', 1))\n"  # SIOCSIFFLAGS: bring the loopback up
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "accepted = server.accept()[0]; accepted.sendall(b'abc'); client.recv(3)\n"
        "print(os.fstat(client.fileno()).st_ino, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        ["unshare", "--net", "python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdout is not None
        first = inside.stdout.readline()
        if not first:
            pytest.skip("unshare --net is not permitted here")
        table = child.call(read_table, LIVE, inside.pid, deadline_seconds=10)
        home = child.call(os.readlink, "/proc/self/ns/net", deadline_seconds=10)
        inside.communicate()
    (found,) = [one for one in table.connections if one.inode == int(first)]

    assert table.gap == ""
    assert found.received_bytes == 3
    assert home == os.readlink("/proc/self/ns/net")
