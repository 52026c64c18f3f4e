"""Bytes that pass on the connections which a thread waits on; what arrives for other threads of its process is another matter."""

from perfwatch.triage.history import History
from perfwatch_probes.readings import Descriptor, Thread


def waited_on(history: History, pid: int, tid: int, seconds: float) -> frozenset[int]:
    """The descriptors that a thread was blocked on lately, and those that an epoll instance among them watches."""
    waits = [one.reading.wait for one in history.series(Thread, pid, tid, seconds=seconds) if one.reading.wait]
    fds = {wait.fd for wait in waits if wait.fd is not None} | {one.fd for wait in waits for one in wait.polled}
    files = [seen.reading for fd in fds if (seen := history.latest(Descriptor, pid, fd)) is not None]
    return frozenset(fds).union(*(file.watched for file in files if file.kind == "epoll"))


def passed(history: History, pid: int, fd: int, seconds: float, sent: bool = False) -> int:
    """Bytes that arrived on a connection over the last seconds, or that were taken of what was sent there; 0 where unknown."""

    grown = history.growth(Descriptor, pid, fd, of=taken if sent else received, seconds=seconds)
    return int(grown[0]) if grown is not None else 0


def received(file: Descriptor) -> float | None:
    """Bytes that have arrived on a connection; None where that is not known."""
    return None if file.socket is None else file.socket.received_bytes


def taken(file: Descriptor) -> float | None:
    """Bytes sent on a connection that its other end has taken; None where that is not known."""
    return None if file.socket is None else file.socket.sent_bytes
