"""The kernel's socket diagnostics (what ``ss`` uses): questions to it over netlink, and the parsers of its answers.

Source: man 7 sock_diag; include/uapi/linux/{inet_diag,unix_diag,tcp}.h. Needs no privilege, but sees only the network
namespace of the asking process.
"""

import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

TCP_STATES = (
    "UNKNOWN ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN CLOSING"
    " NEW_SYN_RECV"
).split()

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST_DUMP = 0x301
_NLM_F_REQUEST_ACK = 0x5  # about one socket: the answer, then an error of number 0
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_INET_REQUEST = struct.Struct("=BBBxI48x")
_INET_ONE_REQUEST = struct.Struct("=BBBxI2s2s16s16sI8s")
_INET_MESSAGE = struct.Struct("=BBBB2s2s16s16sI8sIIIII")  # inet_diag_msg, 72 bytes
_UNIX_REQUEST = struct.Struct("=BBxxIIIII")
_UNIX_MESSAGE = struct.Struct("=BBBxIII")
_INET_DIAG_INFO, _TCP_LISTEN = 2, 10
_NO_COOKIE = b"\xff" * 8
_UNIX_DIAG_NAME, _UNIX_DIAG_PEER, _UNIX_DIAG_RQLEN = 0, 2, 4
_UDIAG_SHOW = 0x1 | 0x4 | 0x10  # name, peer, queue lengths
# Offsets in struct tcp_info; a shorter answer comes from an older kernel.
_LAST_SENT, _LAST_RECEIVED, _RETRANSMITS, _ACKED, _RECEIVED = 44, 52, 100, 120, 128
_RECEIVE_BYTES = 1 << 18
_RECEIVE_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class Connection:
    """One socket as the kernel describes it, TCP, UDP or unix. ``peer_inode`` is for unix sockets only."""

    inode: int
    family: str
    state: str
    local: str = ""
    peer: str = ""
    peer_inode: int | None = None
    received_ago_seconds: float | None = None
    sent_ago_seconds: float | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    receive_queue_bytes: int | None = None
    send_queue_bytes: int | None = None
    retransmits: int | None = None


def ask_tcp(family: int) -> list[Connection]:
    """Every TCP socket of our namespace, of AF_INET or AF_INET6. Raises OSError where the kernel refuses."""
    request = _INET_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0xFFFFFFFF)
    return [parse_tcp(body) for body in _ask(request)]


def ask_unix() -> list[Connection]:
    """Every unix socket of our namespace. Raises OSError where the kernel refuses."""
    request = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0xFFFFFFFF, 0, _UDIAG_SHOW, 0, 0)
    return [parse_unix(body) for body in _ask(request)]


def other_end(ours: socket.socket) -> Connection | None:
    """The socket at the other end of a TCP connection of ours, where it is in our namespace and a process holds it.

    None before it was accepted. The kernel looks it up by its two addresses: 20 us, however many connections there are.
    Raises OSError where the kernel refuses.
    """
    (local, local_port), (peer, peer_port) = ours.getsockname()[:2], ours.getpeername()[:2]
    request = _INET_ONE_REQUEST.pack(
        ours.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF,
        peer_port.to_bytes(2, "big"), local_port.to_bytes(2, "big"),
        socket.inet_pton(ours.family, peer), socket.inet_pton(ours.family, local), 0, _NO_COOKIE,
    )  # fmt: skip
    try:
        found = [parse_tcp(body) for body in _ask(request, _NLM_F_REQUEST_ACK)]
    except FileNotFoundError:  # neither a connection nor a listener
        return None
    return next((one for one in found if one.state != "LISTEN" and one.inode), None)  # who listens stands in


def parse_tcp(body: bytes) -> Connection:
    """One inet_diag_msg with its attributes."""
    fields = _INET_MESSAGE.unpack_from(body)
    family, state, local_port, peer_port, local, peer = (fields[index] for index in (0, 1, 4, 5, 6, 7))
    received, sent, inode = fields[11], fields[12], fields[14]
    size = 4 if family == socket.AF_INET else 16
    info = _attributes(body[_INET_MESSAGE.size :]).get(_INET_DIAG_INFO, b"")
    listening = state == _TCP_LISTEN  # then the queues count connections, and nothing was ever received

    def word(offset: int, layout: str = "I") -> int | None:
        whole = struct.Struct(f"={layout}")
        return None if listening or len(info) < offset + whole.size else int(whole.unpack_from(info, offset)[0])

    received_ago, sent_ago = word(_LAST_RECEIVED), word(_LAST_SENT)
    return Connection(
        inode=inode,
        family="tcp" if family == socket.AF_INET else "tcp6",
        state=TCP_STATES[state] if state < len(TCP_STATES) else "UNKNOWN",
        local=address(local[:size], int.from_bytes(local_port, "big")),
        peer=address(peer[:size], int.from_bytes(peer_port, "big")),
        received_ago_seconds=None if received_ago is None else received_ago / 1000,
        sent_ago_seconds=None if sent_ago is None else sent_ago / 1000,
        received_bytes=word(_RECEIVED, "Q"),
        sent_bytes=word(_ACKED, "Q"),
        receive_queue_bytes=None if listening else received,
        send_queue_bytes=None if listening else sent,
        retransmits=word(_RETRANSMITS),
    )


def parse_unix(body: bytes) -> Connection:
    """One unix_diag_msg with its attributes."""
    _, _, state, inode, _, _ = _UNIX_MESSAGE.unpack_from(body)
    attributes = _attributes(body[_UNIX_MESSAGE.size :])
    peer, lengths = attributes.get(_UNIX_DIAG_PEER), attributes.get(_UNIX_DIAG_RQLEN)
    listening = state == _TCP_LISTEN
    received, sent = struct.unpack("=II", lengths) if lengths and not listening else (None, None)
    return Connection(
        inode=inode,
        family="unix",
        state=TCP_STATES[state] if state < len(TCP_STATES) else "UNKNOWN",
        local=unix_name(attributes.get(_UNIX_DIAG_NAME, b"")),
        peer_inode=struct.unpack("=I", peer)[0] if peer else None,
        receive_queue_bytes=received,
        send_queue_bytes=sent,
    )


def address(raw: bytes, port: int) -> str:
    """``10.0.0.1:29500``, ``[fe80::1]:29500``; IPv4 inside IPv6 is written as IPv4, so that both ends match."""
    host = ipaddress.ip_address(raw)
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else host
    return f"{mapped}:{port}" if mapped else f"[{host}]:{port}"


def unix_name(raw: bytes) -> str:
    """The path of a unix socket; an abstract one starts with @, as in ss and /proc/net/unix."""
    text = raw.rstrip(b"\0") if not raw.startswith(b"\0") else b"@" + raw[1:].replace(b"\0", b"@")
    return text.decode("utf-8", "replace")


def _attributes(raw: bytes) -> dict[int, bytes]:
    found = {}
    while len(raw) >= 4:
        length, kind = struct.unpack_from("=HH", raw)
        if length < 4:
            break
        found[kind] = raw[4:length]
        raw = raw[(length + 3) & ~3 :]
    return found


def _ask(request: bytes, flags: int = _NLM_F_REQUEST_DUMP) -> list[bytes]:
    """Send one request and collect the bodies of its answers."""
    bodies: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_RECEIVE_TIMEOUT_SECONDS)
        netlink.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
        while True:
            answer = netlink.recv(_RECEIVE_BYTES)
            while len(answer) >= _HEADER.size:
                length, kind, _, _, _ = _HEADER.unpack_from(answer)
                if kind == _NLMSG_DONE:
                    return bodies
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", answer, _HEADER.size)[0]
                    if not code:
                        return bodies
                    raise OSError(code, os.strerror(code))
                if length < _HEADER.size:
                    raise OSError("a netlink message without a length")
                bodies.append(answer[_HEADER.size : length])
                answer = answer[(length + 3) & ~3 :]
