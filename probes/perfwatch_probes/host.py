"""The machine around the job: CPU times, memory, swap, page cache to be written, /dev/shm, and pressure.

Everything is cumulative or instantaneous, as the kernel keeps it; differences are triage's business.
"""

import os
from dataclasses import dataclass

from perfwatch_probes import guest
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests, Hosts
from perfwatch_probes.pressure import RESOURCES, parse_pressure
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Host, Pressure

SHM = "/dev/shm"
SHM_DEADLINE_SECONDS = 0.25
_HERTZ, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class HostProbe:
    """Reads the machine.

    Args:
        filesystem: where /proc is.
        hosts: where /dev/shm is looked at, which is a path of the job's.
    """

    NAME = "host"
    NEEDS = "nothing; pressure needs Linux 4.20 with PSI (on RHEL: psi=1 on the kernel command line)"
    COST = "0.5 ms"

    def __init__(self, filesystem: Filesystem | None = None, hosts: Hosts | None = None) -> None:
        self._filesystem = filesystem or Filesystem()
        self._hosts = hosts or Guests(self._filesystem.proc)

    def look(self, pid: int | None = None) -> list[Host]:
        """One reading; with ``pid``, /dev/shm is the one that this process sees (a container has its own)."""
        meminfo, stat = parse_meminfo(self._text("meminfo")), self._text("stat")
        if lacking := [name for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree") if name not in meminfo]:
            raise Unavailable(f"{self._filesystem.proc}/meminfo has no {lacking[0]}")
        times, (running, blocked) = parse_cpu_times(stat)[0], parse_running(stat)
        swapped_in_bytes, swapped_out_bytes = parse_swapped(self._text("vmstat"))
        shm_total_bytes, shm_used_bytes = self._shm(pid)
        return [
            Host(
                cpus_online=os.cpu_count() or 1,
                user_seconds=times.user,
                system_seconds=times.system,
                idle_seconds=times.idle,
                iowait_seconds=times.iowait,
                steal_seconds=times.steal,
                running_threads=running,
                blocked_threads=blocked,
                load_1min=os.getloadavg()[0],
                memory_total_bytes=meminfo["MemTotal"],
                memory_available_bytes=meminfo["MemAvailable"],
                swap_used_bytes=meminfo["SwapTotal"] - meminfo["SwapFree"],
                swapped_in_bytes=swapped_in_bytes,
                swapped_out_bytes=swapped_out_bytes,
                dirty_bytes=meminfo.get("Dirty"),
                writeback_bytes=meminfo.get("Writeback"),
                shm_total_bytes=shm_total_bytes,
                shm_used_bytes=shm_used_bytes,
                pressure=self._pressure(),
            )
        ]

    def _text(self, name: str) -> str:
        return self._filesystem.read_text(self._filesystem.proc / name)

    def _pressure(self) -> dict[str, Pressure]:
        found = {}
        for resource in RESOURCES:
            try:
                found[resource] = parse_pressure(self._text(f"pressure/{resource}"))
            except (Unavailable, ValueError):
                continue
        return found

    def _shm(self, pid: int | None) -> tuple[int | None, int | None]:
        """Of the job's own /dev/shm, which may be a container's; of ours where that cannot be asked."""
        for where in (pid, os.getpid()):
            try:
                if where is not None:
                    return self._hosts.inside(where).call(space, SHM, deadline_seconds=SHM_DEADLINE_SECONDS)
            except (OSError, Unavailable):
                continue
        return None, None


def space(path: str) -> tuple[int, int]:
    """(total, used) bytes of the file system at a path of the job. Runs in a guest; raises OSError."""
    status = guest.file_system(path)
    return status.f_blocks * status.f_frsize, (status.f_blocks - status.f_bfree) * status.f_frsize


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def parse_running(text: str) -> tuple[int | None, int | None]:
    """(runnable, blocked on I/O) threads of the machine, in /proc/stat."""
    words = dict(line.split(" ", 1) for line in text.splitlines() if line.startswith("procs_"))
    running, blocked = words.get("procs_running"), words.get("procs_blocked")
    return (int(running) if running else None), (int(blocked) if blocked else None)


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot; ``user`` includes nice, ``system`` includes interrupts."""

    user: float
    system: float
    idle: float
    iowait: float
    steal: float


def parse_cpu_times(text: str) -> list[CpuTimes]:
    """Of the machine, then of each CPU that is online, in /proc/stat. Raises ValueError on other text."""
    found = []
    for line in text.splitlines():
        if line.startswith("cpu"):
            user, nice, system, idle, iowait, irq, softirq, steal = (int(one) / _HERTZ for one in line.split()[1:9])
            found.append(CpuTimes(user + nice, system + irq + softirq, idle, iowait, steal))
    return found


def parse_swapped(text: str) -> tuple[int, int]:
    """Bytes swapped in and out since boot, in /proc/vmstat; 0 where the kernel has no swap."""
    words = dict(line.split(" ", 1) for line in text.splitlines() if line.startswith("pswp"))
    return int(words.get("pswpin", 0)) * _PAGE_BYTES, int(words.get("pswpout", 0)) * _PAGE_BYTES
