"""The machine: its counters, and what is not known."""

import os
import subprocess
from pathlib import Path

import pytest

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests, Recorded
from perfwatch_probes.host import HostProbe, parse_meminfo, parse_running
from perfwatch_probes.pressure import parse_pressure
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Pressure

MEMINFO = "MemTotal: 100 kB\nMemAvailable: 60 kB\nSwapTotal: 7 kB\nSwapFree: 4 kB\nDirty:   8 kB\n"
STAT = "cpu  1000 100 200 3000 40 6 8 8 0 0\ncpu0 1000 100 200 3000 40 6 8 8 0 0\nprocs_running 3\nprocs_blocked 1\n"


@pytest.mark.live
def test_the_real_machine_makes_sense(child: KillableChild) -> None:
    """Totals bound what is used, and counters have counted."""
    [host] = HostProbe(hosts=Recorded(child)).look()

    assert host.cpus_online >= 1
    assert 0 < host.memory_available_bytes <= host.memory_total_bytes
    assert host.user_seconds > 0
    assert host.dirty_bytes is not None
    assert host.running_threads is not None
    assert host.running_threads >= 1


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount something")
def test_the_shared_memory_is_the_one_that_the_process_sees(guests: Guests) -> None:
    """A container has its own /dev/shm, often of 64 MiB."""
    script = "mount -t tmpfs -o size=1m none /dev/shm && echo mounted && exec sleep 1000"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mounted\n"
        [host] = HostProbe(hosts=guests).look(process.pid)
        process.kill()

    assert host.shm_total_bytes == 2**20


def test_what_the_kernel_does_not_tell_is_not_zero(tmp_path: Path) -> None:
    """Without pressure there is none, and the job's /dev/shm that cannot be seen is ours."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "vmstat").write_text("pgpgin 7\n")

    [host] = HostProbe(Filesystem(proc=tmp_path), Recorded(Inline())).look(41)

    assert host.shm_total_bytes is not None
    assert (host.dirty_bytes, host.running_threads, host.blocked_threads) == (8192, 3, 1)
    assert host.pressure == {}


def test_the_counters_are_those_of_the_kernel_in_seconds_and_bytes(tmp_path: Path) -> None:
    """User time includes nice, system time includes interrupts; what waits for I/O and what a hypervisor took stand alone."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "vmstat").write_text("pswpin 3\npswpout 5\n")

    [host] = HostProbe(Filesystem(proc=tmp_path), Recorded(Inline())).look()

    hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    times = (host.user_seconds, host.system_seconds, host.idle_seconds, host.iowait_seconds, host.steal_seconds)
    assert times == (1100 / hertz, 214 / hertz, 3000 / hertz, 40 / hertz, 8 / hertz)
    assert (host.memory_total_bytes, host.memory_available_bytes) == (1024 * 100, 1024 * 60)
    assert (host.swap_used_bytes, host.swapped_in_bytes, host.swapped_out_bytes) == (1024 * 3, 3 * page, 5 * page)


def test_a_machine_that_does_not_tell_its_memory_has_no_reading(tmp_path: Path) -> None:
    """Missing is not zero."""
    (tmp_path / "meminfo").write_text("Dirty:   8 kB\n")
    (tmp_path / "stat").write_text(STAT)

    with pytest.raises(Unavailable, match="no MemTotal"):
        HostProbe(Filesystem(proc=tmp_path), Recorded(Inline())).look()


def test_memory_is_in_bytes() -> None:
    """Lines without kB (huge page counts) are left out."""
    assert parse_meminfo("MemTotal:  2 kB\nHugePages_Total:  4\n") == {"MemTotal": 2048}


def test_an_empty_stat_is_not_known() -> None:
    """None, never zero."""
    assert parse_running("") == (None, None)


def test_cpu_pressure_of_an_old_kernel_has_no_full_line() -> None:
    """Before Linux 5.13 there was only ``some``."""
    assert parse_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n") == Pressure(
        some_microseconds=12, full_microseconds=0
    )


def test_a_file_that_is_not_pressure_is_refused() -> None:
    """An empty file (PSI switched off) is not zero pressure."""
    with pytest.raises(ValueError, match="some"):
        parse_pressure("")
