"""The scheduler's clocks: measured where we may, remembered for a while, missing where they cannot be known."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from perfwatch_probes.cpu_clock import FRESH_SECONDS, CpuClocks, measure_offsets
from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.probe import Unavailable


class Measured:
    """A calibration that counts its visits; CPU 9 cannot be visited."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, ...]] = []

    def __call__(self, cpus: tuple[int, ...]) -> dict[int, float]:
        """One visit."""
        self.visits.append(cpus)
        return {cpu: cpu / 10 for cpu in cpus if cpu != 9}


def test_offsets_are_kept_while_fresh() -> None:
    """A CPU is visited once in a while, not at every look; a new CPU alone is visited when it appears."""
    measured, now = Measured(), [100.0]
    clocks = CpuClocks(Inline(), measured, lambda: now[0])

    assert clocks.offsets([1, 2, 1]) == {1: 0.1, 2: 0.2}
    assert clocks.offsets([1, 3]) == {1: 0.1, 3: 0.3}
    now[0] += FRESH_SECONDS + 1
    clocks.offsets([2])

    assert measured.visits == [(1, 2), (3,), (2,)]


def test_forbidden_cpu_is_unknown() -> None:
    """A CPU outside our cpuset has no offset, and is not tried again at once."""
    measured = Measured()
    clocks = CpuClocks(Inline(), measured)

    assert clocks.offsets([9]) == clocks.offsets([9]) == {}
    assert measured.visits == [(9,)]


def test_late_calibration_is_unknown() -> None:
    """When the CPUs cannot be visited in time, no offset is invented."""

    class Late(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            raise Unavailable("late")

    assert CpuClocks(Late()).offsets([0]) == {}


@pytest.mark.live
def test_our_own_last_run_is_now(child: KillableChild) -> None:
    """With the measured offset, a thread that runs on that CPU ran a moment ago."""
    cpu = min(os.sched_getaffinity(0))
    first = CpuClocks(child).offsets([cpu])
    if not first:
        pytest.skip("this kernel shows no exec_start")
    second = child.call(measure_offsets, (cpu,), deadline_seconds=10)

    assert second[cpu] == pytest.approx(first[cpu], abs=0.1)
    assert first[cpu] < time.monotonic()


@pytest.mark.live
def test_visits_leave_the_affinity_as_it_was(child: KillableChild) -> None:
    """After its visits the reader may run where it could before, and this process was never moved."""
    before = os.sched_getaffinity(0)
    child.call(measure_offsets, tuple(before), deadline_seconds=10)

    assert child.call(os.sched_getaffinity, 0, deadline_seconds=10) == before == os.sched_getaffinity(0)
