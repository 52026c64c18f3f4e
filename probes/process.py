"""Who the processes of a job are, what they have used, and how they ended. Source: /proc/PID.

``tree`` finds them, ``identify`` says who one is, ``usage`` what it has used, ``ended`` whether it is no more.
Anybody may read stat, status and statm; the command line, the environment, io and fd want the same user or
CAP_SYS_PTRACE: what cannot be read is None, and the rest is still there. The command line, environment and maps wait
for the process' memory lock, which a sick process may hold: they are read in a killable child.

Cost, measured over 2,000 reads on a busy machine of two cores: one scan of /proc 9 us a process, ``usage`` 70 us,
``identify`` 200 us for a shell and 1 ms for a process with torch loaded (its maps).
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfwatch.probes.deadline import Caller
from perfwatch.probes.filesystem import Absent, Filesystem
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Process, ProcessEnded, ProcessUsage
from perfwatch.probes.stat import TICKS_PER_SECOND, Stat, parse_io, parse_pairs, parse_resident, parse_stat

NAME = "process"
NEEDS = "nothing for states and usage; same user or CAP_SYS_PTRACE for command lines, environments and io counters"
COST = "9 us per process of the machine and 70 us per process of the job"

# Measured: 1 ms. A process that holds its memory lock for longer is sick, and that costs us its command line only.
IDENTITY_DEADLINE_SECONDS = 1.0
# Variables that a diagnosis uses and that hold no secret; everything else in the environment stays where it is.
ENVIRONMENT_NAMES = frozenset(
    """RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK NODE_RANK MASTER_ADDR MASTER_PORT
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK PMI_SIZE
    SLURM_JOB_ID SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NNODES SLURM_NODEID SLURM_STEP_ID
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING PYTORCH_CUDA_ALLOC_CONF
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS PYTHONUNBUFFERED
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_FR_BUFFER_SIZE
    TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG
    TORCH_DISTRIBUTED_DEBUG TORCHINDUCTOR_CACHE_DIR
    NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_RAS_ADDR NCCL_RAS_ENABLE
    GLOO_SOCKET_IFNAME KINETO_USE_DAEMON KINETO_IPC_SOCKET_DIR KINETO_CONFIG PERFWATCH_SESSION PERFWATCH_STEPS
    PERFWATCH_TRACER""".split()
)
_MAPS_LIMIT_BYTES = 8 * 2**20  # a process with 2,000 threads and torch has about 1 MiB
_PYTHON_NAME = re.compile(r"(?:python|pypy)[\d.]*[a-z]*(?:-\w+)?(?: \(deleted\))?")
_PYTHON_LIBRARY = re.compile(rb"/libpython[\d.]*[a-z]*\.so")
_TORCH_LIBRARY = re.compile(rb"/libtorch(?:_\w+)?\.so")

T = TypeVar("T")
Redact = Callable[[Sequence[str]], tuple[str, ...]]  # a command line, word by word, without its secrets
Clock = Callable[[], float]  # seconds since boot, suspended time included: what start_ticks counts


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def children_of(filesystem: Filesystem) -> dict[int, list[int]]:
    """Children by parent, of every process that can be seen; one that ends meanwhile is left out."""
    children: dict[int, list[int]] = {}
    for pid in filesystem.processes():
        try:
            children.setdefault(read_stat(filesystem, pid).parent_pid, []).append(pid)
        except Unavailable:
            continue
    return children


def tree(filesystem: Filesystem, root: int, children: Mapping[int, Sequence[int]] | None = None) -> list[int]:
    """``root`` and its descendants, parents before children. Raises Unavailable when there is no ``root``.

    Args:
        filesystem: where /proc is.
        root: the process at the top.
        children: a scan made before, to share it between several roots.
    """
    read_stat(filesystem, root)
    known = children_of(filesystem) if children is None else children
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
        redact: takes secrets out of a command line; also applied to each value of the environment.
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
    executable = os.path.basename(private.executable) if private.executable else None
    innermost = int(status.get("NSpid", str(pid)).split()[-1])
    return Process(
        pid=pid,
        start_ticks=stat.start_ticks,
        parent_pid=stat.parent_pid,
        name=stat.name,
        command=redact(parse_command(private.cmdline)),
        executable=executable,
        python=private.python_library or bool(_PYTHON_NAME.fullmatch(executable or stat.name)),
        torch_loaded=private.torch_library,
        uid=int(status["Uid"].split()[0]) if "Uid" in status else None,
        age_seconds=max(0.0, now() - stat.start_ticks / TICKS_PER_SECOND),
        rank=_integer(environment.get("RANK")),
        local_rank=_integer(environment.get("LOCAL_RANK")),
        world_size=_integer(environment.get("WORLD_SIZE")),
        local_world_size=_integer(environment.get("LOCAL_WORLD_SIZE")),
        namespace_pid=innermost if innermost != pid else None,
        environment={name: redact([value])[0] for name, value in sorted(environment.items())},
    )


@dataclass(frozen=True)
class Private:
    """What only the owner of a process may read of it; empty or None where that was denied."""

    cmdline: bytes = b""
    environ: bytes = b""
    executable: str | None = None
    python_library: bool = False
    torch_library: bool | None = None


def read_private(filesystem: Filesystem, pid: int) -> Private:
    """The files that wait for the memory lock of the process. Runs in a killable child."""
    folder = f"{filesystem.proc}/{pid}"
    maps = _optional(lambda: filesystem.read_bytes(f"{folder}/maps"))
    return Private(
        cmdline=_optional(lambda: filesystem.read_bytes(f"{folder}/cmdline")) or b"",
        environ=_optional(lambda: filesystem.read_bytes(f"{folder}/environ")) or b"",
        executable=_optional(lambda: filesystem.readlink(f"{folder}/exe")),
        python_library=bool(maps and _PYTHON_LIBRARY.search(maps)),
        torch_library=None if not maps else bool(_TORCH_LIBRARY.search(maps)),
    )


def parse_command(cmdline: bytes) -> tuple[str, ...]:
    """The words of a command line; empty for a zombie or a kernel thread."""
    words = cmdline.rstrip(b"\0").decode("utf-8", "replace")
    return tuple(words.split("\0")) if words else ()


def parse_environment(environ: bytes) -> dict[str, str]:
    """The allow-listed variables. Source: the environment at exec; what the program itself sets later is not in it."""
    found = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "replace").partition("=")
        if equals and name in ENVIRONMENT_NAMES:
            found[name] = value
    return found


def usage(filesystem: Filesystem, pid: int, runnable_threads: int | None = None) -> ProcessUsage:
    """What a process has used so far. Raises Unavailable when it is gone; io and open files are None where denied."""
    folder = f"{filesystem.proc}/{pid}"
    stat = read_stat(filesystem, pid)
    resident, shared = parse_resident(filesystem.read_text(f"{folder}/statm"))
    status = parse_pairs(filesystem.read_text(f"{folder}/status"))
    io = _optional(lambda: parse_io(filesystem.read_text(f"{folder}/io"))) or {}
    files = _optional(lambda: filesystem.listdir(f"{folder}/fd"))
    swapped = status.get("VmSwap")
    return ProcessUsage(
        pid=pid,
        state=stat.state,
        threads=stat.threads,
        runnable_threads=runnable_threads,
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
    )


def ended(filesystem: Filesystem, known: Process) -> ProcessEnded | None:
    """How a process that we knew ended; None while it lives.

    Raises Unavailable where the kernel hides the process from us (hidepid). A pid with another start time is another
    process: ours is gone. A zombie's exit code is field 52 of stat, which the kernel shows as 0 to those who may not
    ptrace it: then it is not known. A dead main thread whose other threads live is not an end.
    """
    try:
        stat: Stat | None = read_stat(filesystem, known.pid)
    except Absent:
        stat = None
    if stat is None or stat.start_ticks != known.start_ticks:
        return ProcessEnded(pid=known.pid, start_ticks=known.start_ticks, name=known.name, parent_pid=known.parent_pid)
    if stat.state not in "ZXx" or stat.threads > 1:
        return None
    may_see = stat.wait_status or _optional(lambda: filesystem.read_bytes(f"{filesystem.proc}/{known.pid}/io"))
    signalled = bool(may_see) and os.WIFSIGNALED(stat.wait_status)
    return ProcessEnded(
        pid=known.pid,
        start_ticks=known.start_ticks,
        zombie=True,
        exit_code=os.WEXITSTATUS(stat.wait_status) if may_see and not signalled else None,
        signal=os.WTERMSIG(stat.wait_status) if signalled else None,
        name=known.name,
        parent_pid=stat.parent_pid,
    )


def _optional(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Unavailable:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
