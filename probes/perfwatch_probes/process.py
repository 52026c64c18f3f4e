"""Who the processes of a job are, what they have used, and how they ended. Source: /proc/PID.

``tree`` finds them, ``identify`` says who one is, ``usage`` what it has used, ``ended`` whether it is no more.
Every user may read stat, status and statm; the command line, the environment, io and fd want the same user or
CAP_SYS_PTRACE: what cannot be read is None, and the rest is still there. The command line, environment and maps wait
for the process' memory lock, which a sick process may hold: they are read in a killable child.

Cost in CPU time on a virtual machine: one scan of /proc 17 us a process, ``usage`` 75 us, ``identify`` 0.2 ms, and 1 ms
for a process with torch loaded (its maps).
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from perfwatch_probes import bounds
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.private import Private, optional, parse_command, parse_environment, read_private
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Process, ProcessEnded, ProcessUsage
from perfwatch_probes.stat import TICKS_PER_SECOND, Stat, parse_io, parse_pairs, parse_resident, parse_stat

NAME = "process"
NEEDS = "nothing for states and usage; same user or CAP_SYS_PTRACE for command lines, environments and io counters"
COST = "17 us per process of the machine and 75 us per process of the job"

# Measured: 1 ms. A process that holds its memory lock for longer is sick, and that costs us its command line only.
IDENTITY_DEADLINE_SECONDS = 1.0
_PYTHON_NAME = re.compile(r"(?:python|pypy)[\d.]*[a-z]*(?:-\w+)?(?: \(deleted\))?")
Redact = Callable[[Sequence[str]], tuple[str, ...]]  # the words of a command line without its secrets
Clock = Callable[[], float]  # seconds since boot, suspended time included: what start_ticks counts


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def scan(filesystem: Filesystem) -> dict[int, Stat]:
    """Every process that can be seen; one that ends meanwhile is left out."""
    found: dict[int, Stat] = {}
    for pid in filesystem.processes():
        try:
            found[pid] = read_stat(filesystem, pid)
        except Unavailable:
            continue
    return found


def children_of(stats: Mapping[int, Stat]) -> dict[int, list[int]]:
    """Children by parent; pure."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent_pid, []).append(pid)
    return children


def tree(filesystem: Filesystem, root: int, children: Mapping[int, Sequence[int]] | None = None) -> list[int]:
    """``root`` and its descendants, parents before children. Raises Unavailable when there is no ``root``.

    Args:
        filesystem: where /proc is.
        root: the process at the top.
        children: of a scan made before, to share it between several roots.
    """
    read_stat(filesystem, root)
    known = children_of(scan(filesystem)) if children is None else children
    found, seen = [root], {root}
    for pid in found:  # grows while we walk
        fresh = [child for child in known.get(pid, ()) if child not in seen]  # a reused pid could make a cycle
        seen.update(fresh)
        found += fresh
    return found


def read_stat(filesystem: Filesystem, pid: int) -> Stat:
    """/proc/PID/stat, parsed."""
    return parse_stat(filesystem.read_text(f"{filesystem.proc}/{pid}/stat"))


def identify(filesystem: Filesystem, pid: int, child: Caller, redact: Redact, now: Clock = _since_boot) -> Process:
    """Who this process is.

    Args:
        filesystem: where /proc is.
        pid: the process.
        child: where the reads that may block are made; when they are late, command, environment and executable stay
            unknown.
        redact: takes secrets out of a command line; applied to the environment too.
        now: seconds since boot.

    Raises Unavailable when there is no such process.
    """
    stat = read_stat(filesystem, pid)
    status = parse_pairs(filesystem.read_text(f"{filesystem.proc}/{pid}/status"))
    try:
        private = child.call(read_private, filesystem, pid, deadline_seconds=IDENTITY_DEADLINE_SECONDS)
    except Unavailable:
        private = Private()
    environment = parse_environment(private.environ)
    command = parse_command(private.cmdline)
    executable = os.path.basename(private.executable) if private.executable else None
    python = _is_python(executable, stat.name, command)
    innermost = int(status.get("NSpid", str(pid)).split()[-1])
    return Process(
        pid=pid,
        start_ticks=stat.start_ticks,
        parent_pid=stat.parent_pid,
        name=stat.name,
        command=redact(command if python or private.torch_library else _name_alone(command)),
        executable=executable,
        python=private.python_library or python,
        torch_loaded=private.torch_library,
        uid=int(status["Uid"].split()[0]) if "Uid" in status else None,
        age_seconds=max(0.0, now() - stat.start_ticks / TICKS_PER_SECOND),
        rank=bounds.count(environment.get("RANK")),
        local_rank=bounds.count(environment.get("LOCAL_RANK")),
        world_size=bounds.count(environment.get("WORLD_SIZE")),
        local_world_size=bounds.count(environment.get("LOCAL_WORLD_SIZE")),
        namespace_pid=innermost if innermost != pid else None,
        environment={name: redact((value,))[0] for name, value in sorted(environment.items())},
    )


def _is_python(executable: str | None, name: str, command: Sequence[str]) -> bool:
    """By the executable; where it is hidden (another user's), by what every user may read: a thread may rename itself."""
    names = (executable,) if executable else (name, os.path.basename(command[0]) if command else "")
    return any(_PYTHON_NAME.fullmatch(one) for one in names)


def _name_alone(command: Sequence[str]) -> tuple[str, ...]:
    """The name of a program without its arguments.

    Shells, sudo, curl and database clients take passwords in more forms than can be listed, and no verdict needs their
    arguments. A program that loads torch is the job itself.
    """
    return tuple(word.partition(" ")[0] for word in command[:1])


def program(filesystem: Filesystem, pid: int, child: Caller) -> str:
    """What a process runs, in words that hold no secret: its program, and the script of Python. Empty where it is gone."""
    stat = optional(lambda: read_stat(filesystem, pid))
    if stat is None:
        return ""
    file = f"{filesystem.proc}/{pid}/cmdline"
    deadline = IDENTITY_DEADLINE_SECONDS
    cmdline = optional(
        lambda: child.call(filesystem.read_bytes, file, bounds.ARGUMENTS_BYTES, deadline_seconds=deadline)
    )
    command = parse_command(cmdline or b"")
    name = os.path.basename(*_name_alone(command)) if command else ""
    if not name or not _is_python(None, stat.name, command):
        return name or stat.name
    return " ".join((name, *[os.path.basename(one) for one in command[1:] if one.endswith(".py")][:1]))


def usage(filesystem: Filesystem, pid: int) -> ProcessUsage:
    """What a process has used so far. Raises Unavailable when it is gone; io and open files are None where denied."""
    folder = f"{filesystem.proc}/{pid}"
    stat = read_stat(filesystem, pid)
    resident, shared = parse_resident(filesystem.read_text(f"{folder}/statm"))
    status = parse_pairs(filesystem.read_text(f"{folder}/status"))
    io = optional(lambda: parse_io(filesystem.read_text(f"{folder}/io"))) or {}
    files = optional(lambda: filesystem.listdir(f"{folder}/fd"))
    swapped = status.get("VmSwap")
    return ProcessUsage(
        pid=pid,
        state=stat.state,
        threads=stat.threads,
        cpu_seconds=stat.cpu_seconds,
        children_cpu_seconds=stat.children_cpu_seconds,
        major_faults=stat.major_faults,
        minor_faults=stat.minor_faults,
        resident_bytes=resident,
        shared_bytes=shared,
        swapped_bytes=int(swapped.split()[0]) * 1024 if swapped else None,
        read_chars=io.get("rchar"),
        written_chars=io.get("wchar"),
        read_bytes=io.get("read_bytes"),
        written_bytes=io.get("write_bytes"),
        read_calls=io.get("syscr"),
        write_calls=io.get("syscw"),
        tracer_pid=int(status.get("TracerPid", "0")),
        open_files=None if files is None else len(files),
        signals_caught=int(status["SigCgt"], 16) if "SigCgt" in status else None,
    )


def ended(filesystem: Filesystem, known: Process, seen: Stat | None = None) -> ProcessEnded | None:
    """How a process that we knew ended; None while it lives. ``seen``: of a scan made just now, instead of another look.

    Raises Unavailable where the kernel hides the process from us (hidepid). A pid with another start time is another
    process: ours is gone. A zombie's exit code is field 52 of stat, which the kernel shows as 0 to those who may not
    ptrace it: then it is not known. A dead main thread whose other threads live is not an end.
    """
    try:
        stat: Stat | None = seen or read_stat(filesystem, known.pid)
    except Absent:
        stat = None
    if stat is None or stat.start_ticks != known.start_ticks:
        return ProcessEnded(pid=known.pid, start_ticks=known.start_ticks, name=known.name, parent_pid=known.parent_pid)
    if stat.state not in "ZXx" or stat.threads > 1:
        return None
    # io follows the same permission: where it cannot be read, 0 means "hidden" and not "success".
    may_see = optional(lambda: filesystem.read_bytes(f"{filesystem.proc}/{known.pid}/io")) is not None
    zombie = ProcessEnded(
        pid=known.pid, start_ticks=known.start_ticks, zombie=True, name=known.name, parent_pid=stat.parent_pid
    )
    return told(zombie, stat.wait_status) if may_see else zombie


def told(end: ProcessEnded, wait_status: int) -> ProcessEnded:
    """An end with what its status says (wait(2)): the exit code, or the signal."""
    if os.WIFSIGNALED(wait_status):
        return msgspec.structs.replace(end, signal=os.WTERMSIG(wait_status))
    return msgspec.structs.replace(end, exit_code=os.WEXITSTATUS(wait_status))
