"""The CPUs on which processes may run."""

import os

import pytest

from perfwatch.probes.affinity import AffinityProbe
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Affinity


def gone(pid: int) -> set[int]:
    """The system call's answer for a process that has ended."""
    raise ProcessLookupError


def test_our_own_cpus_are_listed_in_order() -> None:
    """As the kernel says."""
    pid = os.getpid()

    assert list(AffinityProbe().look([pid])) == [Affinity(pid=pid, cpus=tuple(sorted(os.sched_getaffinity(0))))]


def test_processes_that_have_ended_are_left_out_until_none_is_left() -> None:
    """Then it is unavailable, not an empty answer."""
    with pytest.raises(Unavailable):
        AffinityProbe(gone).look([41])
