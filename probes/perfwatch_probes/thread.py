"""What each thread of a process does and when it last did something. Source: /proc/PID/task/TID.

The cheap sweep reads stat alone (state, CPU time) and is for every process, all the time. The full sweep, for
suspects, adds the time on and waiting for a CPU, context switches, its own io, when it last ran, and the blocked
system call decoded. It runs in a killable child, because some of these files and the memory behind a call's pointers
wait for locks of the process.

Who may read: stat, status, schedstat and sched every user; wchan and io the same user; syscall and memory those that may
ptrace (same user and Yama's consent, or CAP_SYS_PTRACE). What is denied is None.

Cost per thread in CPU time, for a process of 201 threads, best of seven, on a virtual machine: stat 10 us to read and 5
to parse; the other six files 65 us; the journey from the child 8 us; decoding with memory 6 to 11 us.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from perfwatch_probes.cpu_clock import CpuClocks
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.reading import SECONDS_DECIMALS
from perfwatch_probes.readings import Thread, Wait
from perfwatch_probes.stat import Stat, parse_exec_start, parse_io, parse_schedstat, parse_stat, parse_switches
from perfwatch_probes.waits import decode_all, mapped_from_afar

NAME = "thread"
NEEDS = "nothing for states and last run; same user for wchan and io; ptrace permission for the decoded wait"
COST = "15 us of CPU a thread in the cheap sweep, 120 us in the full one"

# A thread takes 0.1 ms of CPU to read, and four times as long where CPUs are burnt (measured at load 3 per CPU).
SWEEP_DEADLINE_SECONDS, SWEEP_SECONDS_PER_THREAD = 1.0, 0.001
DECODE_DEADLINE_SECONDS = 0.5  # decoding takes 11 us a thread; longer means that the memory lock is held
_NOT_BLOCKED = ("", "0")  # wchan of a running thread, or of one that we may not look at


@dataclass(frozen=True)
class Raw:
    """The files of one thread at one moment; what could not be read is empty or None."""

    stat: Stat
    at: float  # monotonic seconds
    switches: tuple[int | None, int | None]  # voluntary, involuntary
    schedstat: tuple[float, float] | None
    exec_start: float | None
    wchan: str | None
    syscall: str
    io: dict[str, int]


def threads(
    filesystem: Filesystem,
    pid: int,
    full: bool = False,
    child: Caller | None = None,
    clocks: CpuClocks | None = None,
    tids: Iterable[int] | None = None,
) -> list[Thread]:
    """Every thread of a process, by thread id.

    Args:
        filesystem: where /proc is.
        pid: the process.
        full: read everything, not only state and CPU time. Needs ``child``.
        child: where the reads that may block are made.
        clocks: makes ``ran_ago_seconds`` known; without it, it is None for threads that do not run.
        tids: only these; the default is all.

    Raises Unavailable when the process is gone or, with ``full``, when its files do not answer within the deadline.
    """
    wanted = filesystem.tasks(pid) if tids is None else sorted(tids)
    if not full or child is None:
        return [thread for tid in wanted if (thread := _cheap(filesystem, pid, tid))] or _nothing(filesystem, pid)
    patience = SWEEP_DEADLINE_SECONDS + SWEEP_SECONDS_PER_THREAD * len(wanted)
    raws = child.call(sweep, filesystem, pid, wanted, deadline_seconds=patience)
    if not raws:
        return _nothing(filesystem, pid)
    ages = _ran_ago(raws, clocks)
    calls = {
        raw.stat.pid: (raw.syscall, raw.stat.state, raw.wchan, ages.get(raw.stat.pid)) for raw in raws if raw.syscall
    }
    try:
        waits = child.call(decode_all, filesystem, pid, calls, True, deadline_seconds=DECODE_DEADLINE_SECONDS)
    except Unavailable:  # the memory lock is held: the arguments alone still name descriptors and locks
        waits = decode_all(filesystem, pid, calls, False)
    if any(wait.kind == "page_fault" for wait in waits.values()):
        waits = _name_faults(filesystem, pid, child, waits)
    return [assemble(pid, raw, ages.get(raw.stat.pid), waits.get(raw.stat.pid)) for raw in raws]


def one_thread(filesystem: Filesystem, pid: int, tid: int, child: Caller, clocks: CpuClocks | None = None) -> Thread:
    """The full reading of one thread. Raises Unavailable when it is gone."""
    found = threads(filesystem, pid, full=True, child=child, clocks=clocks, tids=[tid])
    if not found:
        raise Unavailable(f"thread {tid} of process {pid} has ended")
    return found[0]


def sweep(filesystem: Filesystem, pid: int, tids: list[int]) -> list[Raw]:
    """All files of these threads; those that ended meanwhile are left out."""
    found = []
    for tid in tids:
        try:
            found.append(_read(filesystem, f"{filesystem.proc}/{pid}/task/{tid}"))
        except Unavailable:
            continue
    return found


def assemble(pid: int, raw: Raw, ran_ago: float | None, wait: Wait | None) -> Thread:
    """The reading made of one thread's files."""
    run, delay = raw.schedstat or (None, None)
    return Thread(
        pid=pid,
        tid=raw.stat.pid,
        name=raw.stat.name,
        start_ticks=raw.stat.start_ticks,
        state=raw.stat.state,
        cpu_seconds=raw.stat.cpu_seconds,
        system_seconds=raw.stat.system_seconds,
        run_seconds=run,
        run_delay_seconds=delay,
        voluntary_switches=raw.switches[0],
        involuntary_switches=raw.switches[1],
        ran_ago_seconds=ran_ago,
        wchan=None if raw.wchan in _NOT_BLOCKED else raw.wchan,
        wait=wait,
        read_chars=raw.io.get("rchar"),
        written_chars=raw.io.get("wchar"),
        read_calls=raw.io.get("syscr"),
        write_calls=raw.io.get("syscw"),
        read_bytes=raw.io.get("read_bytes"),
        written_bytes=raw.io.get("write_bytes"),
        block_delay_seconds=raw.stat.block_delay_seconds,
    )


def _name_faults(filesystem: Filesystem, pid: int, child: Caller, waits: dict[int, Wait]) -> dict[int, Wait]:
    """Page faults with the file that they wait for, where it can be told."""
    try:
        path = child.call(mapped_from_afar, filesystem, pid, deadline_seconds=DECODE_DEADLINE_SECONDS)
    except Unavailable:
        return waits
    return {
        tid: msgspec.structs.replace(wait, path=path) if wait.kind == "page_fault" else wait
        for tid, wait in waits.items()
    }


def _nothing(filesystem: Filesystem, pid: int) -> list[Thread]:
    """No thread was found: raises Unavailable if that is because the process is gone."""
    filesystem.tasks(pid)
    return []


def _cheap(filesystem: Filesystem, pid: int, tid: int) -> Thread | None:
    try:
        stat = parse_stat(filesystem.read_text(f"{filesystem.proc}/{pid}/task/{tid}/stat"))
    except Unavailable:  # it ended
        return None
    return Thread(
        pid=pid,
        tid=tid,
        name=stat.name,
        state=stat.state,
        cpu_seconds=stat.cpu_seconds,
        block_delay_seconds=stat.block_delay_seconds,
    )


def _read(filesystem: Filesystem, folder: str) -> Raw:
    def text(name: str) -> str:
        try:
            return filesystem.read_text(f"{folder}/{name}")
        except Unavailable:
            return ""

    # The wait is read before the state: a thread that wakes in between is then reported as running, not as blocked.
    syscall, sched, wchan, io = text("syscall"), text("sched"), text("wchan"), text("io")
    status, schedstat = text("status"), text("schedstat")
    return Raw(
        stat=parse_stat(filesystem.read_text(f"{folder}/stat")),
        at=time.monotonic(),
        switches=parse_switches(status),
        schedstat=parse_schedstat(schedstat) if schedstat else None,
        exec_start=parse_exec_start(sched),
        wchan=wchan or None,
        syscall=syscall,
        io=parse_io(io) if io else {},
    )


def _ran_ago(raws: list[Raw], clocks: CpuClocks | None) -> dict[int, float]:
    """Seconds since each thread last ran; a runnable one runs now."""
    ages = {raw.stat.pid: 0.0 for raw in raws if raw.stat.state == "R"}
    sleeping = [raw for raw in raws if raw.stat.state != "R" and raw.exec_start is not None]
    if clocks is None or not sleeping:
        return ages
    offsets = clocks.offsets(raw.stat.processor for raw in sleeping)
    for raw in sleeping:
        offset = offsets.get(raw.stat.processor)
        if offset is not None and raw.exec_start is not None:
            ages[raw.stat.pid] = round(max(0.0, raw.at - (raw.exec_start + offset)), SECONDS_DECIMALS)
    return ages
