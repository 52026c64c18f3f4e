"""The kernel's socket diagnostics: recorded messages, short answers of old kernels, and our own sockets."""

import os
import socket
import struct

import pytest

from perfwatch_probes.sock_diag import address, ask_tcp, ask_unix, parse_tcp, parse_unix, unix_name

ESTABLISHED, LISTEN = 1, 10


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute, padded."""
    return struct.pack("=HH", len(payload) + 4, kind) + payload + bytes(-len(payload) % 4)


def tcp_message(state: int, info: bytes = b"", family: int = socket.AF_INET) -> bytes:
    """An inet_diag_msg of 10.0.0.1:29500 with 10.0.0.2:40000; queues 7 and 9, inode 1234."""
    ends = struct.pack(
        "=2s2s16s16sI8s", b"\x73\x3c", b"\x9c\x40", bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]), 0, bytes(8)
    )
    return (
        struct.pack("=BBBB", family, state, 0, 0) + ends + struct.pack("=IIIII", 0, 7, 9, 0, 1234) + attribute(2, info)
    )


def tcp_info() -> bytes:
    """A tcp_info as of Linux 4.2: sent 1.5 s ago, received 2.5 s ago, 3 retransmits, 100 acked, 200 received."""
    info = bytearray(136)
    struct.pack_into("=I", info, 44, 1500)
    struct.pack_into("=I", info, 52, 2500)
    struct.pack_into("=I", info, 100, 3)
    struct.pack_into("=QQ", info, 120, 100, 200)
    return bytes(info)


def test_connection_with_its_memory() -> None:
    """Both ends, both queues, when something last went each way, and how much."""
    found = parse_tcp(tcp_message(ESTABLISHED, tcp_info()))

    assert (found.inode, found.family, found.state) == (1234, "tcp", "ESTABLISHED")
    assert (found.local, found.peer) == ("10.0.0.1:29500", "10.0.0.2:40000")
    assert (found.receive_queue_bytes, found.send_queue_bytes) == (7, 9)
    assert (found.sent_ago_seconds, found.received_ago_seconds, found.retransmits) == (1.5, 2.5, 3)
    assert (found.sent_bytes, found.received_bytes) == (100, 200)


def test_short_answer_of_an_old_kernel() -> None:
    """What an older kernel does not count is unknown; what it does, stands."""
    found = parse_tcp(tcp_message(ESTABLISHED, tcp_info()[:104]))

    assert (found.received_ago_seconds, found.retransmits) == (2.5, 3)
    assert (found.sent_bytes, found.received_bytes) == (None, None)
    assert parse_tcp(tcp_message(ESTABLISHED)).received_ago_seconds is None


def test_listening_socket_received_nothing() -> None:
    """The queues of a listening socket count connections, not bytes: they are not reported as bytes."""
    found = parse_tcp(tcp_message(LISTEN, tcp_info()))

    assert (found.state, found.receive_queue_bytes, found.received_ago_seconds) == ("LISTEN", None, None)


def test_addresses_of_both_families_match() -> None:
    """An IPv4 peer reads the same whether its socket is IPv4 or IPv6."""
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2])

    assert address(bytes([10, 0, 0, 2]), 80) == address(mapped, 80) == "10.0.0.2:80"
    assert address(bytes(15) + b"\x01", 80) == "[::1]:80"


def test_unix_socket_with_peer() -> None:
    """A unix socket names its peer by inode, and its own path."""
    body = struct.pack("=BBBxIII", 1, 1, ESTABLISHED, 55, 0, 0)
    body += (
        attribute(0, b"/run/x.sock\0") + attribute(2, struct.pack("=I", 56)) + attribute(4, struct.pack("=II", 3, 4))
    )
    found = parse_unix(body)

    assert (found.inode, found.peer_inode, found.local) == (55, 56, "/run/x.sock")
    assert (found.receive_queue_bytes, found.send_queue_bytes) == (3, 4)


def test_torn_attributes_end_the_message() -> None:
    """An attribute of length zero would be read for ever: it ends the message."""
    assert parse_unix(struct.pack("=BBBxIII", 1, 1, 1, 55, 0, 0) + bytes(8)).peer_inode is None


def test_abstract_name() -> None:
    """An abstract unix address starts with an at sign, as in ss."""
    assert unix_name(b"\0dynolog") == "@dynolog"
    assert unix_name(b"/run/x\0") == "/run/x"
    assert unix_name(b"") == ""


@pytest.mark.live
def test_our_own_connection_is_described() -> None:
    """The kernel tells of a living connection how many bytes arrived and when."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        accepted.sendall(b"12345")
        client.recv(5, socket.MSG_PEEK)
        inode = os.fstat(client.fileno()).st_ino
        (found,) = [one for one in ask_tcp(socket.AF_INET) if one.inode == inode]

    assert (found.state, found.received_bytes, found.receive_queue_bytes) == ("ESTABLISHED", 5, 5)
    assert found.received_ago_seconds is not None
    assert found.received_ago_seconds < 30


def test_our_own_pair_knows_its_peer() -> None:
    """Both ends of a socket pair point at each other."""
    here, there = socket.socketpair()
    with here, there:
        found = {one.inode: one for one in ask_unix()}

        assert found[os.fstat(here.fileno()).st_ino].peer_inode == os.fstat(there.fileno()).st_ino


def test_refusal_is_an_error() -> None:
    """A family that the kernel does not know is refused aloud, not answered with nothing."""
    with pytest.raises(OSError, match=r"."):
        ask_tcp(200)
