"""What a process or a thread does, in shares of a core and bytes per second: the figures that rules print and compare.

To work is to use CPU time or to move bytes. Whether work could release a wait is asked of the wait graph, not here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.cards.gpu import polls
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.arriving import passed, waited_on
from perfwatch.triage.moving.loops import LOOP_SECONDS
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.waits.devices import engine_threads, waiting_for_cards
from perfwatch.triage.waits.node import Node
from perfwatch_probes.readings import ProcessUsage, Thread

WATCHED_SECONDS = 3.0
WINDOW_SECONDS = 10.0
WORKING_SHARE = 0.05  # of a core
MOVING_BYTES = 4096  # per second
LOADING_BYTES = (
    2**20
)  # per second; a shell that asks five times a second by grep and sleep reads 110 KiB/s, all of it their libraries
AT_ONCE = 0.0  # seconds that somebody must be watched who is seen to use CPU time between two looks
SETTLED = ("dead", "stopped", "traced", "cycle")  # ends that nobody's work beside them heals


@dataclass(frozen=True)
class Work:
    """What is used: a share of a core, and bytes per second, read, written, sent and received."""

    cores: float
    data: float
    tids: tuple[int, ...] = ()  # of the threads that do it, the busiest first, where they were asked one by one

    @property
    def said(self) -> str:
        """In words, with its figures."""
        data = f", {self.data / 1024:,.0f} KiB/s read and written" if self.data >= MOVING_BYTES else ""
        return f"{self.cores:.0%} of a core{data}"


def started_by(case: Case, pid: int) -> tuple[int, ...]:
    """The living processes below one, without the library's own servants and the workers of its loader."""
    found = case.job.descendants(pid)
    return tuple(m.pid for m in found if m.alive and m.role not in ("service", "worker"))


def busy_with(case: Case, pid: int, watched_seconds: float = WATCHED_SECONDS) -> Work | None:
    """What a process does that has enough of it to do and was watched for so long."""
    cores = _rate(case, pid, lambda usage: usage.cpu_seconds, watched_seconds)
    moved = _rate(case, pid, lambda usage: float((usage.read_chars or 0) + (usage.written_chars or 0)), watched_seconds)
    data = max(moved or 0.0, _carried(case, pid, [tid for _, tid in case.history.of(Thread, pid)]))
    if cores is None or (cores < WORKING_SHARE and (data < MOVING_BYTES or _only_loads(case, pid, data))):
        return None
    return Work(cores, data)


def _only_loads(case: Case, pid: int, data: float) -> bool:
    """Whether what a process reads may be what brief programs that it starts are loaded from.

    The kernel adds to a process what its reaped children have read and written (``do_io_accounting`` in fs/proc/base.c). Where
    these compute next to nothing, write nothing and read from no disk, all of it may be their libraries.
    """
    seen = case.history.latest(ProcessUsage, pid)
    reaped = seen.reading.children_cpu_seconds if seen is not None else None  # ever: one a minute shows in no rate
    computed = _rate(case, pid, lambda usage: usage.cpu_seconds + (usage.children_cpu_seconds or 0.0), AT_ONCE)
    written = _rate(case, pid, lambda usage: usage.written_chars, AT_ONCE)
    fetched = _rate(case, pid, lambda usage: usage.read_bytes, AT_ONCE)
    if not reaped or computed is None or written is None or fetched is None:
        return False
    return computed < WORKING_SHARE and max(written, fetched) < MOVING_BYTES and data < LOADING_BYTES


def spin_for_cards(case: Case, pid: int) -> list[int]:
    """The threads that wait for a card which only polls: of torch's engine, and those that stay at a synchronisation."""
    if not polls(case.history, pid):
        return []
    waiting = (one.tid for one in waiting_for_cards(case.history, case.job, pid))
    return [*engine_threads(case.history, pid), *waiting]


def data_of(case: Case, pid: int, tids: list[int]) -> float:
    """Bytes per second that these threads read and write themselves, and that pass on the connections that they wait on."""
    own = (case.history.rate(Thread, pid, tid, of=chars_of, seconds=WINDOW_SECONDS) or 0.0 for tid in tids)
    return max(sum(own), _carried(case, pid, tids))  # what read and write moved over a connection is in both


def chars_of(thread: Thread) -> float | None:
    """Bytes that a thread has read and written itself since it began; None where neither is known."""
    known = [count for count in (thread.read_chars, thread.written_chars) if count is not None]
    return float(sum(known)) if known else None


def _carried(case: Case, pid: int, tids: list[int]) -> float:
    fds = frozenset[int]().union(*(waited_on(case.history, pid, tid, WINDOW_SECONDS) for tid in tids))
    both = sum(passed(case.history, pid, fd, WINDOW_SECONDS, sent) for fd in fds for sent in (False, True))
    return both / WINDOW_SECONDS


def _rate(case: Case, pid: int, of: Callable[[ProcessUsage], float | None], watched_seconds: float) -> float | None:
    grown = case.history.growth(ProcessUsage, pid, of=of, seconds=WINDOW_SECONDS)
    return grown[0] / grown[1] if grown is not None and grown[1] >= watched_seconds else None


def moves_data(case: Case, node: Node) -> bool:
    """True if a thread reads or writes so much itself that its loop is one over data, which come to an end."""
    rate = case.history.rate(Thread, node.pid, node.tid, of=chars_of, seconds=LOOP_SECONDS)
    return rate is not None and rate >= MOVING_BYTES


def releases_gil(history: History, node: Node) -> bool:
    """True if a thread was seen without the GIL half of the time: it computes in native code and does not only run Python.

    Measured: loops of small torch operations 80 to 100 % of the dumps, of plain Python none.
    """
    known = [seen.reading.owns_gil for seen in stacks_of(history, node.pid, node.tid, LOOP_SECONDS)]
    return known.count(False) > 0 and known.count(False) >= known.count(True)
