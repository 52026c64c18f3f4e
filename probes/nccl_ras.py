"""NCCL's RAS service: every process of an NCCL job (2.24 and newer) answers for the whole job, from a thread of its own.

It answers when the training threads are stuck, and needs nothing from the job. Where: ``NCCL_RAS_ADDR`` of the job's
environment, or localhost:28028. The port is shared (SO_REUSEPORT) by all processes of one user on a host, also by those of
another job, and an answer may come from a process that is stopped: so a question has a deadline of its own, is asked again,
and an answer counts only where its processes are those of the job.

Source: src/ras/client_support.cc and docs/userguide/source/troubleshooting/ras.rst of NCCL 2.24 to 2.30.
"""

import io
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.nccl_address import addresses
from perfwatch.probes.nccl_report import parse
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Communicator, GroupMember
from perfwatch.probes.sockets import enter_network_of

RAS_SECONDS = 3  # what the service itself may take to hear from its peers
LINE_SECONDS = 1.0  # for a line that needs nobody else: a stopped process never answers
ATTEMPTS = 6
MOST_ANSWER_BYTES = 8 * 2**20  # 16,000 ranks; a rank is 500 bytes


@dataclass(frozen=True)
class Job:
    """Whom the question is about.

    Args:
        pids: the ranks on this machine, as we see them.
        inner: by the pid that a rank sees itself under (NSpid), ours.
        world_size: of the whole job, where it is known.
    """

    pids: tuple[int, ...]
    inner: Mapping[int, int] = field(default_factory=dict)
    world_size: int | None = None

    def ours(self, pid: int | None) -> int | None:
        """Our pid for one that the service named, if it is of this job."""
        if pid in self.pids:
            return pid
        return self.inner.get(pid) if pid is not None else None


class NcclRasProbe:
    """Asks once.

    Args:
        filesystem: where /proc is.
        attempts: how often to ask, where another job or a stopped process answers on the same port.
    """

    NAME = "nccl_ras"
    NEEDS = "NCCL 2.24 or newer in the job; the job's user, or root; in a container's network CAP_SYS_ADMIN"
    COST = "a fork and 13 ms of CPU here (measured beside two H200); up to 3 s to wait for, which nobody does"

    def __init__(self, filesystem: Filesystem | None = None, attempts: int = ATTEMPTS) -> None:
        self._filesystem = filesystem or Filesystem()
        self._attempts = attempts

    def look(self, job: Job) -> list[Communicator]:
        """One reading per communicator. Runs in a process of its own: it may enter the job's network namespace.

        Raises Unavailable: off, not there, somebody else's, or silent.
        """
        enter_network_of(self._filesystem, job.pids[0])
        trouble = Unavailable("NCCL's RAS service was not asked")
        for address, whole in addresses(self._filesystem, job.pids):
            for _ in range(self._attempts):
                try:
                    return list(belonging(parse(ask(address)), job, certain=whole))
                except Unavailable as unavailable:
                    trouble = unavailable
                    if isinstance(unavailable, Refused):
                        break
        raise trouble


class Refused(Unavailable):
    """Nothing listens there, or it is not the service: asking again is of no use."""


def ask(address: tuple[str, int]) -> str:
    """The report, JSON where the service knows it. Raises Unavailable; ``Refused`` when nobody is there."""
    try:
        with socket.create_connection(address, timeout=LINE_SECONDS) as connection:
            lines = connection.makefile("rb")
            _say(connection, "CLIENT PROTOCOL 2")
            greeting = lines.readline(1024)
            if not greeting.startswith((b"SERVER PROTOCOL", b"ERROR: Unknown command")):
                raise Refused(f"what listens on {address[0]}:{address[1]} is not NCCL's RAS service")
            for line in (f"TIMEOUT {RAS_SECONDS}", "SET FORMAT json"):
                _say(connection, line)
                lines.readline(1024)  # OK; an older service does not know the format and goes on with text
            connection.settimeout(RAS_SECONDS + LINE_SECONDS)
            _say(connection, "VERBOSE STATUS")
            return _rest(lines, time.monotonic() + 2 * RAS_SECONDS)
    except ConnectionRefusedError:
        raise Refused(f"nothing listens on {address[0]}:{address[1]} any more") from None
    except OSError as error:  # a timeout is one
        reason = "did not answer" if isinstance(error, TimeoutError) else f"broke off: {error.strerror or error}"
        raise Unavailable(f"NCCL's RAS service at {address[0]}:{address[1]} {reason}") from None


def belonging(communicators: Iterable[Communicator], job: Job, certain: bool) -> Iterable[Communicator]:
    """The answer with the members that are ours marked.

    certain: only processes of the job listen on that port. Raises Unavailable where the answer is about another job: on each
    of its hosts there is a process that is not ours, or it has more ranks than the job.
    """
    answer = list(communicators)
    unheard = ("unresponsive", "dead", "missing")  # of an ended process of ours we may not know that it was one
    named = [m for one in answer for m in one.members if m.pid is not None and m.state not in unheard]
    by_host: dict[str, set[int]] = {}
    for member in named:
        by_host.setdefault(member.host, set()).add(member.pid or 0)
    here = {host for host, pids in by_host.items() if all(job.ours(pid) for pid in pids)}
    if (named and not here) or not (named or certain):
        raise Unavailable("an answer of NCCL's RAS service was about another job")
    largest = max((one.size for one in answer), default=0)
    if job.world_size is not None and largest > job.world_size:
        raise Unavailable(f"an answer of NCCL's RAS service was about a job of {largest} ranks, not {job.world_size}")
    return [
        msgspec.structs.replace(one, members=tuple(_placed(member, here, job) for member in one.members))
        for one in answer
    ]


def _placed(member: GroupMember, here: Collection[str], job: Job) -> GroupMember:
    pid = job.ours(member.pid) if member.host in here else None
    return member if pid is None else msgspec.structs.replace(member, pid=pid, local=True)


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
