"""The CPUs on which processes may run."""

import os

import pytest

from perfwatch_probes.affinity import AffinityProbe
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Affinity


def gone(pid: int) -> set[int]:
    """The system call's answer for a process that has ended."""
    raise ProcessLookupError


def test_our_own_cpus_are_listed_in_order() -> None:
    """As the kernel says."""
    pid = os.getpid()

    (reading,) = AffinityProbe().look([pid])

    assert (reading.pid, reading.cpus) == (pid, tuple(sorted(os.sched_getaffinity(0))))


def test_of_a_process_with_cpus_of_its_own_is_said_what_anybody_computes_on_these() -> None:
    """Of one that may run everywhere the host's own figures tell it."""
    confined = {41: {1, 3}, 42: {0, 1, 2, 3}}

    readings = AffinityProbe(confined.__getitem__, lambda: (1.0, 10.0, 100.0, 1000.0), cpus=4).look([41, 42])

    assert list(readings) == [Affinity(pid=41, cpus=(1, 3), busy_seconds=1010.0), Affinity(pid=42, cpus=(0, 1, 2, 3))]


def test_where_cpus_are_offline_it_is_not_guessed_which_are_busy() -> None:
    """Of four CPUs three are listed: the last may be the third or the fourth."""
    readings = AffinityProbe(lambda _: {3}, lambda: (1.0, 10.0, 100.0), cpus=4).look([41])

    assert list(readings) == [Affinity(pid=41, cpus=(3,))]


def test_processes_that_have_ended_are_left_out_until_none_is_left() -> None:
    """Then it is unavailable, not an empty answer."""
    with pytest.raises(Unavailable):
        AffinityProbe(gone).look([41])
