"""The socket that the job's profilers ask, and who has asked: answers at once, whatever else goes on.

The rule that keeps the job alive: an answer is sent from the socket bound to ``dynolog`` and from no other, for a client
that gets one from elsewhere terminates its process.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfwatch.captures.kineto.protocol import LONGEST_DATAGRAM_BYTES, Poll, answer, parse, registered
from perfwatch.processes.channel import Message
from perfwatch.processes.control import bind_privately
from perfwatch.processes.place import start_ticks

NAME = "dynolog"
CLIENT_NAME = "dynoconfigclient"
MOST_CLIENTS = 4096
MOST_AT_ONCE = 256  # datagrams before the other descriptors get their turn
FORGET_SECONDS = 60.0  # a client polls every few seconds
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid, as we see them


@dataclass
class Client:
    """One process that asks: ``idle`` as it last said, ``asked_at`` by our clock, ``given`` the windows handed out."""

    pid: int
    idle: bool
    asked_at: float
    given: int = 0


class Endpoint:
    """Serves one address.

    Args:
        address: a path, or ``b"\\0name\\0"`` in the abstract namespace.
        clock: monotonic seconds.

    Raises OSError when the address cannot be bound.
    """

    def __init__(self, address: str | bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[bytes, Client] = {}
        self._offers: dict[int, tuple[str, float]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        bind_privately(self._socket, address)

    def fileno(self) -> int:
        """For poll()."""
        return self._socket.fileno()

    def serve(self) -> None:
        """Answer what has arrived."""
        for _ in range(MOST_AT_ONCE):
            try:
                datagram, ancillary, _, sender = self._socket.recvmsg(
                    LONGEST_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:
                return
            pid, uid = _credentials(ancillary)
            if sender and (uid in (0, os.getuid()) or os.getuid() == 0):
                name = sender if isinstance(sender, bytes) else os.fsencode(sender)
                self._one(datagram, name, pid)

    def answer(self, request: Message) -> Message:
        """What a capture asks of us: ``clients``, ``offer``, ``withdraw``."""
        command = request.get("command")
        if command == "clients":
            return {"ok": True, "clients": [self._described(one) for one in self._clients.values()]}
        if command == "offer" and isinstance(request.get("texts"), dict):
            ends = self._clock() + float(request.get("seconds", 5.0))
            self._offers |= {int(pid): (str(text), ends) for pid, text in request["texts"].items()}
            return {"ok": True}
        if command == "withdraw":
            self._offers.clear()
            return {"ok": True}
        return {"ok": False, "error": f"unknown command {command!r}"}

    def forget(self) -> None:
        """Let go of processes that have ended, with the socket file that each left behind."""
        for name, client in list(self._clients.items()):
            silent = self._clock() - client.asked_at
            if silent > FORGET_SECONDS and start_ticks(client.pid) is None:
                del self._clients[name]
                _remove(name)

    def close(self) -> None:
        """Let the address go. A path stays, and is unlinked by the process that keeps it."""
        self._socket.close()

    def _one(self, datagram: bytes, sender: bytes, pid: int) -> None:
        said = parse(datagram)
        if isinstance(said, Poll):
            self._reply(sender, answer(self._polled(said, sender, pid)))
        elif said is not None:
            self._reply(sender, registered(len(self._clients) + 1))

    def _polled(self, poll: Poll, sender: bytes, pid: int) -> str:
        now = self._clock()
        client = self._clients.get(sender)
        if client is None or client.pid != pid:
            if len(self._clients) >= MOST_CLIENTS:
                return ""
            client = self._clients[sender] = Client(pid, poll.idle, now)
        client.idle, client.asked_at = poll.idle, now
        text, ends = self._offers.pop(pid, ("", 0.0)) if poll.idle else ("", 0.0)
        if not text or now > ends:
            return ""
        client.given += 1
        return text

    def _reply(self, sender: bytes, datagram: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, or does not read: it polls
            self._socket.sendto(datagram, sender)

    def _described(self, client: Client) -> Mapping[str, object]:
        return {
            "pid": client.pid,
            "idle": client.idle,
            "ago_seconds": round(self._clock() - client.asked_at, 3),
            "given": client.given,
        }


def _credentials(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Pid and uid of a sender as we see them, from the kernel; -1 where it does not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return pid, uid
    return -1, -1


def _remove(name: bytes) -> None:
    if not name.startswith(b"\0"):
        with contextlib.suppress(OSError):
            os.unlink(name)


def leftovers(folder: Path) -> Iterator[Path]:
    """Socket files that clients of an earlier endpoint have left in its folder."""
    yield from folder.glob(f"{CLIENT_NAME}*")
