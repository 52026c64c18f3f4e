"""The CPUs on which each process may run. Sixteen workers on one allowed CPU are a slow job on an idle machine."""

import os
from collections.abc import Callable, Iterator, Sequence

from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Affinity


class AffinityProbe:
    """Asks the kernel with sched_getaffinity(2), which any user may do for any process.

    Args:
        get: the system call; tests give their own.
    """

    NAME = "affinity"
    NEEDS = "nothing"
    COST = "2 us per process"

    def __init__(self, get: Callable[[int], set[int]] = os.sched_getaffinity) -> None:
        self._get = get

    def look(self, pids: Sequence[int] = ()) -> Iterator[Affinity]:
        """One reading per process that is still there. Raises Unavailable when none is."""
        readings = [Affinity(pid=pid, cpus=cpus) for pid in pids if (cpus := self._cpus(pid))]
        if pids and not readings:
            raise Unavailable("none of the processes is there any more")
        return iter(readings)

    def _cpus(self, pid: int) -> tuple[int, ...]:
        try:
            return tuple(sorted(self._get(pid)))
        except OSError:
            return ()
