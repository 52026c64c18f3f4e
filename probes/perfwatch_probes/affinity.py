"""The CPUs on which each process may run, and how busy they are.

Sixteen workers on one allowed CPU are a slow job on an idle machine; a job with CPUs of its own does not mind what others burn.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from perfwatch_probes.host import parse_cpu_times
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Affinity


class AffinityProbe:
    """Asks the kernel with sched_getaffinity(2), which any user may do for any process.

    Args:
        get: the system call; tests give their own.
        busy: what each CPU of the machine has computed so far, in seconds.
        cpus: how many CPUs the machine has.
    """

    NAME = "affinity"
    NEEDS = "nothing"
    COST = "2 us per process; 60 us more where one is confined to some of the CPUs"

    def __init__(
        self,
        get: Callable[[int], set[int]] = os.sched_getaffinity,
        busy: Callable[[], Sequence[float]] | None = None,
        cpus: int | None = None,
    ) -> None:
        self._get = get
        self._busy = busy or busy_seconds
        self._all = cpus or os.cpu_count() or 1

    def look(self, pids: Sequence[int] = ()) -> Iterator[Affinity]:
        """One reading per process that is still there. Raises Unavailable when none is."""
        busy = cache(self._busy)  # one look for all processes
        readings = [
            Affinity(pid=pid, cpus=cpus, busy_seconds=None if len(cpus) >= self._all else _of(cpus, busy()))
            for pid in pids
            if (cpus := self._cpus(pid))
        ]
        if pids and not readings:
            raise Unavailable("none of the processes is there any more")
        return iter(readings)

    def _cpus(self, pid: int) -> tuple[int, ...]:
        try:
            return tuple(sorted(self._get(pid)))
        except OSError:
            return ()


def busy_seconds() -> list[float]:
    """What each CPU has computed since the machine started, in the order of /proc/stat."""
    return [times.user + times.system for times in parse_cpu_times(Path("/proc/stat").read_text())[1:]]


def _of(cpus: tuple[int, ...], busy: Sequence[float]) -> float | None:
    """What was computed on these CPUs; None where some are offline and the others cannot be told apart."""
    return sum(busy[cpu] for cpu in cpus) if cpus[-1] < len(busy) else None
