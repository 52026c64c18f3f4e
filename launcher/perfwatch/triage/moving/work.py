"""What a process or a thread uses: a share of a core, and bytes per second. The wait graph and the rules read the same figures.

Whether work could release a wait is asked of the wait graph, not here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfwatch.triage.history import History, Seen, once
from perfwatch.triage.moving.motion import FROZEN_SWITCHES_PER_SECOND, motion, python_threads
from perfwatch.triage.moving.thresholds import (
    FEW_FAULTS_PER_SECOND,
    LIBRARIES_BYTES,
    OF_OTHER_THREADS,
    SIGN_OF_LIFE,
    TRAFFIC_SECONDS,
    USAGE_SECONDS,
    WORKS_BYTES,
)
from perfwatch.triage.shares.thresholds import MOST
from perfwatch_probes.readings import Descriptor, ProcessUsage, Thread, Traffic


@dataclass(frozen=True)
class Work:
    """What is used: a share of a core, and bytes per second, read, written, sent and received."""

    cores: float = 0.0
    data: float = 0.0

    @property
    def sign(self) -> float:
        """How much of a sign of life it is: cores, and 1.0 where data moves."""
        return max(self.cores, 1.0 if self.data >= WORKS_BYTES else 0.0)

    @property
    def said(self) -> str:
        """In words, with its figures."""
        data = f", {self.data / 1024:,.0f} KiB/s read and written" if self.data >= WORKS_BYTES else ""
        return f"{self.cores:.0%} of a core{data}"


NO_WORK = Work()


def work_of(history: History, pid: int, beside: Collection[int] = ()) -> Work:
    """What a process uses, without the CPU time of the threads ``beside``; nothing if its CPU time was not watched.

    Threads that only poll do not work. Where there are some, the CPU time of the others is added up: what is left of the process'
    own, which is read at another moment, is no better than the readings.
    """
    cores = history.rate(ProcessUsage, pid, of=lambda usage: usage.cpu_seconds, seconds=USAGE_SECONDS)
    if cores is None:
        return NO_WORK
    pollers = polling_threads(history, pid)
    shares = {tid: motion(history, pid, tid).run_share for _, tid in history.of(Thread, pid)}
    if pollers and None not in shares.values():
        cores = sum(share or 0.0 for tid, share in shares.items() if tid not in pollers)
        others = sum(share or 0.0 for tid, share in shares.items() if tid not in pollers and tid not in beside)
    else:
        others = cores - sum(motion(history, pid, tid).run_share or 0.0 for tid in {*beside, *pollers})
    data = history.rate(ProcessUsage, pid, of=_moved, seconds=USAGE_SECONDS) or 0.0
    data = 0.0 if data < LIBRARIES_BYTES and _only_loads(history, pid) else data
    sent = history.rate(Traffic, pid, of=lambda one: one.received_bytes + one.sent_bytes, seconds=TRAFFIC_SECONDS)
    return Work(others if others >= OF_OTHER_THREADS * cores else 0.0, max(data, sent or 0.0))


@once
def polling_threads(history: History, pid: int) -> frozenset[int]:
    """Native threads that look again and again whether there is something to do, and let others run in between (``sched_yield``).

    Such a thread never sleeps, and most of its CPU time is the kernel's, although it reads and writes nothing and its process faults no
    pages in. Measured: TensorPipe's reactor for shared memory spends 76 to 90 % in the kernel.
    """
    faults = history.rate(ProcessUsage, pid, of=lambda usage: usage.minor_faults, seconds=USAGE_SECONDS)
    if faults is None or faults > FEW_FAULTS_PER_SECOND:
        return frozenset()
    threads = {tid for _, tid in history.of(Thread, pid)} - {pid, *python_threads(history, pid)}
    return frozenset(tid for tid in threads if _polls(history, pid, tid))


def _polls(history: History, pid: int, tid: int) -> bool:
    seen = motion(history, pid, tid)
    if (seen.run_share or 0.0) < SIGN_OF_LIFE or seen.io_calls != 0:
        return False
    sleeps = seen.switches_per_second is None or seen.switches_per_second > FROZEN_SWITCHES_PER_SECOND
    return not sleeps and seen.kernel_share is not None and seen.kernel_share >= MOST


def _only_loads(history: History, pid: int) -> bool:
    """True if what a process reads may be the libraries of brief programs that it starts.

    The kernel adds to a process what its reaped children have read and written (``do_io_accounting`` in fs/proc/base.c).
    """
    last = history.latest(ProcessUsage, pid)
    if last is None or not last.reading.children_cpu_seconds:
        return False
    counters = (_computed, lambda usage: usage.written_chars, lambda usage: usage.read_bytes)
    computed, *moved = (history.rate(ProcessUsage, pid, of=one, seconds=USAGE_SECONDS) or 0.0 for one in counters)
    return computed < SIGN_OF_LIFE and max(moved) < WORKS_BYTES


def _computed(usage: ProcessUsage) -> float:
    return usage.cpu_seconds + (usage.children_cpu_seconds or 0.0)


def data_of(history: History, pid: int, tids: Collection[int]) -> float:
    """Bytes per second that these threads read and write themselves, and that pass on the connections that they wait on."""
    own = (history.rate(Thread, pid, tid, of=chars_of, seconds=USAGE_SECONDS) or 0.0 for tid in tids)
    fds = frozenset[int]().union(*(waited_on(history, pid, tid, USAGE_SECONDS) for tid in tids))
    both = sum(passed(history, pid, fd, USAGE_SECONDS, sent) for fd in fds for sent in (False, True))
    return max(sum(own), both / USAGE_SECONDS)  # what read and write moved over a connection is in both


def chars_of(thread: Thread) -> float | None:
    """Bytes that a thread has read and written itself since it began; None where neither is known."""
    known = [count for count in (thread.read_chars, thread.written_chars) if count is not None]
    return float(sum(known)) if known else None


def _moved(usage: ProcessUsage) -> float:
    return float((usage.read_chars or 0) + (usage.written_chars or 0))


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


# What the TCP connections of a process carry: the same sums read twice, whatever else the machine sends

# Bytes a second, all connections or interfaces together, that still count as nothing: NCCL's and gloo's own keep-alives.
SILENT_BYTES_PER_SECOND = 50_000.0
CARRIES_BYTES = 5_000_000  # what NCCL's and gloo's own greetings and keep-alives do not add up to: tens of kilobytes
KEEP_ALIVE_BYTES = 1_000  # one of them may be under way at the moment of the look
LOST = 2  # sent again so often: a single loss happens


@dataclass(frozen=True)
class Flow:
    """What went over connections, both ways."""

    bytes_per_second: float
    queued_bytes: int  # written, and not confirmed by the other end
    retransmits: int  # within the window
    carried_bytes: int = 0  # both ways, since the connections were opened
    # Written and not confirmed at each look, while nothing else was confirmed: no keep-alive is under way so long.
    standing_bytes: int = 0

    @property
    def lost(self) -> bool:
        """True if what is sent does not reach the other end: the kernel sends it again and again."""
        return self.queued_bytes > 0 and self.retransmits >= LOST

    @property
    def delivered(self) -> bool:
        """True if large tensors went over them, and all that was sent has been confirmed: nothing is left for the network to deliver."""
        return self.carried_bytes >= CARRIES_BYTES and self.owes_nothing

    @property
    def owes_nothing(self) -> bool:
        """True if nothing is under way: what was sent has been confirmed, nothing is sent again, and nothing comes."""
        under_way = self.queued_bytes > KEEP_ALIVE_BYTES or self.standing_bytes > 0
        return not under_way and self.retransmits < LOST and self.silent

    @property
    def silent(self) -> bool:
        """True if nothing but keep-alives goes over them."""
        return self.bytes_per_second <= SILENT_BYTES_PER_SECOND

    def shown(self) -> str:
        """For a line of evidence."""
        parts = [f"{self.bytes_per_second / 1024:.1f} KiB/s"]
        parts += [f"{self.queued_bytes:,} bytes written and not confirmed"] if self.queued_bytes else []
        parts += [f"sent again {self.retransmits} times"] if self.retransmits else []
        return ", ".join(parts)


def flow(history: History, pid: int, seconds: float) -> Flow | None:
    """Over the last ``seconds``; None where the same connections were not read twice."""
    return _between(history.series(Traffic, pid, seconds=max(seconds, TRAFFIC_SECONDS)))


def newest_flow(history: History, pid: int) -> Flow | None:
    """Between the last two looks: whether anything comes now, whatever came before them."""
    return _between(history.series(Traffic, pid, seconds=TRAFFIC_SECONDS)[-2:])


def _between(looks: Sequence[Seen[Traffic]]) -> Flow | None:
    if len(looks) < 2 or looks[0].reading.connections != looks[-1].reading.connections:
        return None
    first, last = looks[0].reading, looks[-1].reading
    moved = last.received_bytes - first.received_bytes + last.sent_bytes - first.sent_bytes
    return Flow(
        max(0, moved) / (looks[-1].at - looks[0].at),
        last.queued_bytes,
        max(0, last.retransmits - first.retransmits),
        last.received_bytes + last.sent_bytes,
        min(one.reading.queued_bytes for one in looks) if last.sent_bytes == first.sent_bytes else 0,
    )
