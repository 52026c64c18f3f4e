"""One conversation with NCCL's RAS service: lines over TCP, a greeting first, the report at its end.

Source: src/ras/client_support.cc of NCCL 2.24 to 2.30. The greeting costs the service nothing; a report is gathered from
every process of its job.
"""

import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from perfwatch_probes.group_readings import UNANSWERED
from perfwatch_probes.probe import Unavailable

REPORT_SECONDS = 3  # what the service itself may take to hear from its peers
LINE_SECONDS = 1.0  # for a line that needs no other rank
MOST_ANSWER_BYTES = 8 * 2**20  # 16,000 ranks; a rank is 500 bytes


class Refused(Unavailable):
    """Nothing listens there, or it is not the service: asking again is of no use."""


class Silent(Unavailable):
    """No greeting came in time: a process that is stopped, or a machine that has no time."""


class Client:
    """A connection on which the service has greeted us: so one of its processes has accepted it."""

    def __init__(self, connection: socket.socket, lines: io.BufferedReader) -> None:
        self.connection, self._lines = connection, lines

    def report(self) -> str:
        """What it knows of its job, JSON where it can. Raises Unavailable or OSError."""
        self.connection.settimeout(LINE_SECONDS)
        for line in (f"TIMEOUT {REPORT_SECONDS}", "SET FORMAT json"):
            _say(self.connection, line)
            self._lines.readline(1024)  # OK; an older service does not know the format and goes on with text
        self.connection.settimeout(REPORT_SECONDS + LINE_SECONDS)
        _say(self.connection, "VERBOSE STATUS")
        return _rest(self._lines, time.monotonic() + 2 * REPORT_SECONDS)


@contextmanager
def greeted(address: tuple[str, int], seconds: float = LINE_SECONDS) -> Iterator[Client]:
    """Connect, and wait so long for the greeting. Raises Unavailable: ``Refused``, ``Silent``, or whatever breaks off inside."""
    where = f"{address[0]}:{address[1]}"
    greeting = b""
    try:
        # Both are closed, at once: a socket stays open as long as a file of it does.
        with socket.create_connection(address, timeout=seconds) as connection, connection.makefile("rb") as lines:
            _say(connection, "CLIENT PROTOCOL 2")
            greeting = lines.readline(1024)
            if greeting and not greeting.startswith((b"SERVER PROTOCOL", b"ERROR: Unknown command")):
                raise Refused(f"what listens on {where} is not NCCL's RAS service")
            if not greeting:  # it ended in this very moment
                raise Unavailable(f"NCCL's RAS service at {where} broke off: no greeting")
            yield Client(connection, lines)
    except ConnectionRefusedError:
        raise Refused(f"nothing listens on {where} any more") from None
    except TimeoutError:
        raise (Unavailable if greeting else Silent)(f"NCCL's RAS service at {where} {UNANSWERED}") from None
    except OSError as error:
        raise Unavailable(f"NCCL's RAS service at {where} broke off: {error.strerror or error}") from None


def _say(connection: socket.socket, line: str) -> None:
    connection.sendall(f"{line}\n".encode())


def _rest(lines: io.BufferedReader, ends: float) -> str:
    taken = bytearray()
    while chunk := lines.read1(65536):
        taken += chunk
        if len(taken) > MOST_ANSWER_BYTES:
            raise Refused(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB is not NCCL's RAS service")
        if time.monotonic() > ends:
            raise Unavailable("NCCL's RAS service did not come to an end")
    return taken.decode("utf-8", "replace")
