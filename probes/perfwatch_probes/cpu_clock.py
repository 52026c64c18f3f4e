"""The scheduler's clock of each CPU, against which "when did this thread last run" is measured.

``se.exec_start`` of a thread is a moment on the clock of the CPU on which it last ran. That clock leaves out time
spent in interrupts and time stolen by the hypervisor, so the clocks of two CPUs of one machine may be hours apart
after weeks. A reader that is moved to a CPU for an instant, and reads its own ``exec_start`` there, learns that CPU's
offset.
"""

import os
import time
from collections.abc import Callable, Iterable

from perfwatch_probes.deadline import Caller
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_exec_start

# An offset grows by the share of interrupts and stolen time: 5 s at a heavy 10 % is half a second.
FRESH_SECONDS = 5.0
CALIBRATION_DEADLINE_SECONDS = 1.0  # measured: 60 us an idle CPU, a slice (3-20 ms) a burnt one

Offsets = dict[int, float]  # CPU -> monotonic minus scheduler clock, seconds


class CpuClocks:
    """Remembers each CPU's offset for a few seconds.

    Args:
        child: where the moving is done, so that the watcher's own affinity is never touched.
        calibrate: measures the offsets of some CPUs; those on which we may not run are missing from its result.
        now: seconds, monotonic.

    Cost: 60 us per CPU on which a thread of interest last ran, at most every five seconds.
    """

    def __init__(
        self,
        child: Caller,
        calibrate: Callable[[tuple[int, ...]], Offsets] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._child = child
        self._calibrate = calibrate or measure_offsets
        self._now = now
        self._offsets: dict[int, tuple[float, float | None]] = {}  # CPU -> (when measured, offset)

    def offsets(self, cpus: Iterable[int]) -> Offsets:
        """Offsets of these CPUs, where they can be known: exec_start + offset is on the monotonic clock."""
        now = self._now()
        wanted = set(cpus)
        stale = tuple(
            sorted(cpu for cpu in wanted if cpu not in self._offsets or now - self._offsets[cpu][0] > FRESH_SECONDS)
        )
        if stale:
            try:
                fresh = self._child.call(self._calibrate, stale, deadline_seconds=CALIBRATION_DEADLINE_SECONDS)
            except Unavailable:
                fresh = {}
            for cpu in stale:
                self._offsets[cpu] = (now, fresh.get(cpu))
        known = ((cpu, self._offsets[cpu][1]) for cpu in wanted)
        return {cpu: offset for cpu, offset in known if offset is not None}


def measure_offsets(cpus: tuple[int, ...]) -> Offsets:
    """Visit each CPU and compare its scheduler clock with the monotonic one. Empty without exec_start."""
    allowed = os.sched_getaffinity(0)
    offsets = {}
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
            except OSError:  # offline, or outside our cpuset
                continue
            os.sched_yield()  # brings our own exec_start up to now
            moment = time.monotonic()
            with open("/proc/thread-self/sched") as file:
                ran = parse_exec_start(file.read())
            if ran is not None:
                offsets[cpu] = moment - ran
    except OSError:  # no CONFIG_SCHED_DEBUG
        return {}
    finally:
        os.sched_setaffinity(0, allowed)
    return offsets
