"""What this process and its helpers cost so far: CPU seconds and resident memory."""

import os
import resource
from pathlib import Path

from perfwatch_probes.stat import stat_fields

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """CPU seconds of this process and of its helpers that have ended (getrusage(2)); those that live are not in it."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def own_cost(proc: Path = Path("/proc")) -> tuple[float, int]:
    """CPU seconds (ended helpers included) and resident bytes of this process and its living children.

    Pages that a child shares with us count twice: the figure is an upper bound.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, resident = ended.ru_utime + ended.ru_stime, 0
    for pid in (os.getpid(), *_children(proc)):
        try:
            fields = stat_fields(proc / str(pid))
            resident += int((proc / str(pid) / "statm").read_bytes().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            continue  # it ended just now
        seconds += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return round(seconds, 3), resident


def _children(proc: Path) -> list[int]:
    try:
        return [int(pid) for pid in (proc / f"{os.getpid()}/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:
        return []  # a kernel without CONFIG_PROC_CHILDREN: those that ended are counted all the same
