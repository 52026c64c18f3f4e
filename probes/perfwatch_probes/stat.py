"""Parsers of the text that /proc gives for a process and, in the same form, for each of its threads.

Pure functions of text. A file of a process that ends in the middle of the read comes back empty or torn: then they
raise ``Absent``, as if the file were gone.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from perfwatch_probes.bounds import KERNEL_FILE_BYTES
from perfwatch_probes.filesystem import Absent
from perfwatch_probes.locked_files import read_kernel_file

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EXIT_CODE_INDEX = 49  # field 52 of stat, counted from the state (field 3); Linux 3.5


@dataclass(frozen=True)
class Stat:
    """The fields of stat(5) that are read here; times in seconds, sizes in bytes."""

    pid: int
    name: str
    state: str
    parent_pid: int
    minor_faults: int
    major_faults: int
    cpu_seconds: float
    system_seconds: float  # the part of it that was spent in the kernel
    children_cpu_seconds: float
    threads: int
    start_ticks: int
    processor: int  # on which it last ran
    block_delay_seconds: float
    wait_status: int  # of a zombie, as wait(2) encodes it; 0 where we may not ptrace it


def stat_fields(entry: Path) -> list[bytes]:
    """Those of stat(5) that follow the name, which may hold spaces and parentheses; ``[0]`` is the state, field 3.

    For a caller that needs one of them of a process or thread, ``entry`` below /proc. Raises OSError or IndexError: it has ended.
    """
    return read_kernel_file(f"{entry}/stat", KERNEL_FILE_BYTES).rsplit(b")", 1)[1].split()


def parse_stat(text: str) -> Stat:
    """stat of a process or thread. The name may hold spaces and parentheses: it ends at the last one."""
    try:
        head, tail = text.rsplit(")", 1)
        pid, name = head.split(" (", 1)
        fields = tail.split()
        return Stat(
            pid=int(pid),
            name=name,
            state=fields[0],
            parent_pid=int(fields[1]),
            minor_faults=int(fields[7]),
            major_faults=int(fields[9]),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
            system_seconds=int(fields[12]) / TICKS_PER_SECOND,
            children_cpu_seconds=(int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND,
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            processor=int(fields[36]),
            block_delay_seconds=int(fields[39]) / TICKS_PER_SECOND,
            wait_status=int(fields[_EXIT_CODE_INDEX]) if len(fields) > _EXIT_CODE_INDEX else 0,
        )
    except (ValueError, IndexError):
        raise _torn("stat") from None


def parse_terminal(text: str) -> int | None:
    """The device of the controlling terminal, as os.stat gives it, from the same text; None without one."""
    try:
        number = int(text.rsplit(")", 1)[1].split()[4])
    except (ValueError, IndexError):
        raise _torn("stat") from None
    # The kernel's new_encode_dev(): bits 8 to 19 are the major number, the others the minor one.
    return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00) if number else None


def parse_pairs(text: str) -> dict[str, str]:
    """``Name: value`` lines, as in status and fdinfo; empty for an empty file."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def parse_switches(status: str) -> tuple[int | None, int | None]:
    """Voluntary and involuntary context switches: the last two lines of status, found without parsing the others."""
    counts = []
    for name in ("\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:"):
        _, found, rest = status.rpartition(name)
        words = rest.split(maxsplit=1)
        counts.append(int(words[0]) if found and words and words[0].isdigit() else None)
    return counts[0], counts[1]


def parse_io(text: str) -> dict[str, int]:
    """The counters of io: rchar wchar syscr syscw read_bytes write_bytes cancelled_write_bytes."""
    try:
        counters = {name: int(value) for name, value in parse_pairs(text).items()}
    except ValueError:
        raise _torn("io") from None
    if "syscw" not in counters:
        raise _torn("io")
    return counters


def parse_resident(statm: str) -> tuple[int, int]:
    """Resident and shared (files and shared memory) bytes, from statm."""
    try:
        _, resident, shared = (int(field) for field in statm.split()[:3])
    except ValueError:
        raise _torn("statm") from None
    return resident * PAGE_BYTES, shared * PAGE_BYTES


def parse_schedstat(text: str) -> tuple[float, float]:
    """Seconds on a CPU, and seconds runnable while waiting for one."""
    try:
        run, delay, _ = (int(field) for field in text.split())
    except ValueError:
        raise _torn("schedstat") from None
    return run / 1e9, delay / 1e9


def parse_exec_start(sched: str) -> float | None:
    """Seconds, on the scheduler's clock of its CPU, when the thread last ran; None where the kernel does not tell.

    Zero is no moment: the kernel sets it while a thread moves to another CPU, and since Linux 6.12 a sleeping thread may be moved.
    """
    for line in sched.splitlines():
        name, _, value = line.partition(":")
        if name.rstrip() == "se.exec_start":
            try:
                return float(value) / 1e3 or None
            except ValueError:
                return None
    return None


def _torn(name: str) -> Absent:
    return Absent(f"{name} is empty or torn: the process ended in the middle of the read")
