"""NCCL's RAS service: every process of an NCCL job (2.24 and newer) answers for the whole job, from a thread of its own.

It answers when the training threads are stuck, and needs nothing from the job. Where: ``NCCL_RAS_ADDR`` of the job's
environment, or localhost:28028. The port is shared (SO_REUSEPORT) by all processes of one user on a host, also by those of
another job, and the kernel hands a connection to any of them: so we look who has accepted it, and leave others alone before
they gather a report. It may be a process that is stopped: so the greeting has a deadline. In the end an answer counts only
where its processes are those of the job.

Source: src/ras/client_support.cc and docs/userguide/source/troubleshooting/ras.rst of NCCL 2.24 to 2.30.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests, become
from perfwatch_probes.nccl_acceptor import Acceptors
from perfwatch_probes.nccl_address import OWN_PORT_ADVICE, addresses
from perfwatch_probes.nccl_client import LINE_SECONDS, Refused, Silent, greeted
from perfwatch_probes.nccl_report import parse
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Communicator, GroupMember
from perfwatch_probes.sockets import enter_network_of

ATTEMPTS = 6  # reports asked for
# Of twelve jobs of two ranks each on one port, 64 connections miss ours once in 260 looks; each costs 1 ms.
CONNECTIONS, CONNECTING_SECONDS = 64, 3.0
# A live service greets within a millisecond; one that is stopped never does. Each silence doubles the patience, for a
# machine that is overloaded.
FIRST_LINE_SECONDS = 0.1


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
        attempts: how many reports to ask for, where another job answers on the same port and that is not seen before.
        connecting_seconds: for how long to connect anew, where others accept or no greeting comes.
        guests: know as whom to connect; this process becomes that user, for good.
    """

    NAME = "nccl_ras"
    NEEDS = "NCCL 2.24 or newer in the job; the job's user, or root; in a container's network CAP_SYS_ADMIN"
    COST = "a fork and 13 ms of CPU here (measured beside two H200); up to 3 s of waiting, in the background"

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        attempts: int = ATTEMPTS,
        connecting_seconds: float = CONNECTING_SECONDS,
        guests: Guests | None = None,
    ) -> None:
        self._filesystem = filesystem or Filesystem()
        self._attempts = attempts
        self._connecting_seconds, self._guests = connecting_seconds, guests

    def look(self, job: Job) -> list[Communicator]:
        """One reading per communicator. Runs in a process of its own: it may enter the job's network namespace.

        Raises Unavailable: off, not there, another job's, or silent.
        """
        enter_network_of(self._filesystem, job.pids[0])
        trouble = Unavailable("NCCL's RAS service was not asked")
        ends = time.monotonic() + self._connecting_seconds
        found = addresses(self._filesystem, job.pids)
        if self._guests is not None:
            become(self._guests.identity(job.pids[0]))
        for address, whole in found:
            try:
                return self._ask(address, whole, job, ends)
            except Unavailable as unavailable:
                trouble = unavailable
        raise trouble

    def _ask(self, address: tuple[str, int], whole: bool, job: Job, ends: float) -> list[Communicator]:
        """Connect until a process of the job has accepted, and ask that one."""
        acceptors = None if whole else Acceptors(self._filesystem, job.pids)
        trouble = Unavailable(
            f"NCCL's RAS service at {address[0]}:{address[1]} is shared with other jobs, and no connection came to this one",
            OWN_PORT_ADVICE,
        )
        asked, patience_seconds, others = 0, FIRST_LINE_SECONDS, False
        for _ in range(CONNECTIONS):
            try:
                with greeted(address, patience_seconds) as client:
                    ours = acceptors.ours(client.connection) if acceptors else True
                    others = others or ours is False
                    if ours is not False:
                        asked += 1
                        return list(belonging(parse(client.report()), job, certain=ours is True))
            except Refused:
                raise
            except Silent as silent:
                patience_seconds = min(LINE_SECONDS, 2 * patience_seconds)
                if whole or not others:
                    trouble = silent
            except Unavailable as unavailable:
                trouble = unavailable
            if asked >= self._attempts or time.monotonic() >= ends:
                break
        raise trouble


def belonging(communicators: Iterable[Communicator], job: Job, certain: bool) -> Iterable[Communicator]:
    """The answer with the members that are ours marked.

    certain: a process of the job gave it. Then it is about the job, and any other that it names shares a communicator with it: ranks
    of which it could not be read whose they are, or an inference engine that is sent the weights. Groups of such alone are left out.
    Raises Unavailable where the answer is about another job: it names none of our processes, or unless a process of the job gave
    it, on each of its hosts one that is not ours, or more ranks than the job has.
    """
    answer = list(communicators)
    by_host: dict[str, set[int]] = {}
    for one in answer:
        for host, pid in _named(one):
            by_host.setdefault(host, set()).add(pid)
    here = {host for host, pids in by_host.items() if all(job.ours(pid) for pid in pids)}
    if certain:
        here = _most_ours(by_host, here, job)
    if (by_host and not here) or not (by_host or certain):
        raise Unavailable("an answer of NCCL's RAS service was about another job")
    largest = max((one.size for one in answer), default=0)
    if not certain and job.world_size is not None and largest > job.world_size:
        raise Unavailable(f"an answer of NCCL's RAS service was about a job of {largest} ranks, not {job.world_size}")
    return [
        msgspec.structs.replace(one, members=tuple(_placed(member, here, job) for member in one.members))
        for one in answer
        if not _beside(one, here, job)
    ]


def _named(communicator: Communicator) -> Iterator[tuple[str, int]]:
    """Host and pid of the members that were heard: of an ended process of ours we may not know that it was one."""
    for member in communicator.members:
        if member.pid is not None and member.state not in ("unresponsive", "dead", "missing"):
            yield member.host, member.pid


def _most_ours(by_host: Mapping[str, Collection[int]], wholly: Collection[str], job: Job) -> set[str]:
    """The host on which most of the processes are that may be ours; of equals, those on which there are no others."""
    ours = {host: sum(job.ours(pid) is not None for pid in pids) for host, pids in by_host.items()}
    most = max(ours.values(), default=0)
    equals = {host for host, count in ours.items() if count == most > 0}
    return equals if len(equals) == 1 else equals.intersection(wholly)


def _beside(communicator: Communicator, here: Collection[str], job: Job) -> bool:
    """True if a group is one of other processes of our host."""
    named = list(_named(communicator))
    return bool(named) and all(host in here and job.ours(pid) is None for host, pid in named)


def _placed(member: GroupMember, here: Collection[str], job: Job) -> GroupMember:
    pid = job.ours(member.pid) if member.host in here else None
    return member if pid is None else msgspec.structs.replace(member, pid=pid, local=True)
