"""One end of a channel between two of our processes: small JSON messages; sending never blocks."""

import contextlib
import json
import socket
from typing import Any

from perfwatch_probes.readable import readable

LONGEST_MESSAGE_BYTES = 64 * 1024  # well under the kernel's default socket buffer (208 KiB)

Message = dict[str, Any]


class Channel:
    """One end. A message that does not fit is dropped: the other side is gone or busy, and the job must not wait."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.closed = False
        end.setblocking(False)

    @staticmethod
    def pair() -> "tuple[Channel, Channel]":
        """Both ends, close-on-exec."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(one), Channel(other)

    def fileno(self) -> int:
        """For poll()."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send if there is room. ``receive`` finds that the other side is gone, after the last message from there."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps(message).encode()[:LONGEST_MESSAGE_BYTES], socket.MSG_NOSIGNAL)

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Message]:
        """What has arrived, after waiting up to ``timeout_seconds`` (None: for as long as it takes).

        Sets ``closed`` when the other side is gone.
        """
        if timeout_seconds is None or timeout_seconds > 0:
            readable(timeout_seconds, self._socket)
        messages: list[Message] = []
        while True:
            try:
                data = self._socket.recv(LONGEST_MESSAGE_BYTES)
            except BlockingIOError:
                return messages
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return messages
            try:
                messages.append(json.loads(data))
            except ValueError:
                continue  # a cut message

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
