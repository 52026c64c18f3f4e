"""Which threads of a large process are read in full: the main thread, Python's, those that run, then the oldest."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

from perfwatch_probes.bounds import MOST_STACKED_THREADS
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.readings import ProbeCall, Thread
from perfwatch_probes.thread import threads

MOST_THREADS = 64
MOST_PYTHON_THREADS = 256  # of those with a Python stack, where they alone are more than that
MOST_ACTIVE_THREADS = 64
SURVEYED_THREADS = 512  # whose state and CPU time are read at each choice, one after the other in turns: 8 ms
# Below it nothing is said: torch, BLAS and NCCL start hundreds of threads of which a verdict needs a few.
UNREMARKABLE_THREADS = MOST_STACKED_THREADS
SAID_SECONDS = 60.0
PROBE = "threads"


@dataclass
class _Known:
    """One process of many threads."""

    cpu_seconds: dict[int, float] = field(default_factory=dict)
    active: dict[int, None] = field(default_factory=dict)  # in the order in which they were seen to run
    next: int = 0
    said_at: float = float("-inf")


class ThreadChoice:
    """Chooses threads, and remembers which of them were seen to run.

    Args:
        filesystem: where /proc is.
        clock: monotonic seconds.
        say: takes a reading that tells how many threads were left out.
    """

    def __init__(
        self, filesystem: Filesystem, clock: Callable[[], float], say: Callable[[list[ProbeCall]], None]
    ) -> None:
        self._filesystem, self._clock, self._say = filesystem, clock, say
        self._known: dict[int, _Known] = {}

    def choose(self, pid: int, tids: list[int], python: Iterable[int]) -> list[int]:
        """The threads of a process to read in full now.

        Args:
            pid: the process.
            tids: all of its threads, ascending.
            python: those with a Python stack.
        """
        named = sorted(python)[:MOST_PYTHON_THREADS]
        if len(tids) <= MOST_THREADS:
            self._known.pop(pid, None)
            return list(dict.fromkeys([pid, *named, *tids]))
        known = self._known.setdefault(pid, _Known())
        active = self._survey(pid, tids, known)
        chosen = list(dict.fromkeys([pid, *named, *active, *tids]))[: max(MOST_THREADS, 1 + len(named)) + len(active)]
        if len(tids) > UNREMARKABLE_THREADS and self._clock() - known.said_at >= SAID_SECONDS:
            known.said_at = self._clock()
            self._say([_left_out(pid, len(tids) - len(chosen), len(tids))])
        return chosen

    def forget(self, alive: Collection[int]) -> None:
        """Let go of processes that are not among these."""
        self._known = {pid: known for pid, known in self._known.items() if pid in alive}

    def _survey(self, pid: int, tids: list[int], known: _Known) -> list[int]:
        """Threads that run, or have used CPU time since they were last asked. The newest of them."""
        start = known.next % len(tids)
        turn = dict.fromkeys(tids[start : start + SURVEYED_THREADS])
        known.next = start + len(turn) if start + len(turn) < len(tids) else 0
        there = set(tids)
        asked = dict.fromkeys([*(tid for tid in known.active if tid in there), *turn])
        for one in threads(self._filesystem, pid, tids=asked):
            if self._runs(one, known):
                known.active.pop(one.tid, None)
                known.active[one.tid] = None
            elif one.tid in turn:
                known.active.pop(one.tid, None)  # it has not run for a whole round
        surplus = max(0, len(known.active) - MOST_ACTIVE_THREADS)
        for tid in [*islice(known.active, surplus), *(tid for tid in known.active if tid not in there)]:
            known.active.pop(tid, None)
        if len(known.cpu_seconds) > 2 * len(tids):
            known.cpu_seconds = {tid: used for tid, used in known.cpu_seconds.items() if tid in there}
        return list(known.active)

    def _runs(self, one: Thread, known: _Known) -> bool:
        before = known.cpu_seconds.get(one.tid)
        known.cpu_seconds[one.tid] = one.cpu_seconds
        return one.state in "RD" or (before is not None and one.cpu_seconds > before)


def _left_out(pid: int, count: int, of: int) -> ProbeCall:
    return ProbeCall(
        probe=PROBE,
        entity=f"pid {pid}",
        duration_seconds=0.0,
        outcome="unavailable",
        reason=f"{count:,} of {of:,} threads of pid {pid} were not sampled",
    )
