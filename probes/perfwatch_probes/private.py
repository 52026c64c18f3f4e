"""What only the owner of a process may read of it: command line, environment, executable, loaded libraries.

Source: /proc/PID/{cmdline,environ,exe,maps}; the same user or CAP_SYS_PTRACE. All but the executable wait for the
memory lock of the process, which a sick one may hold for ever: ``read_private`` is meant for a killable child.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from perfwatch_probes.bounds import ARGUMENTS_BYTES, ENVIRONMENT_BYTES, MAPS_BYTES, MOST_ARGUMENTS, VARIABLE_BYTES
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

# Variables that a diagnosis uses and that hold no secret; everything else in the environment stays where it is.
ENVIRONMENT_NAMES = frozenset(
    """RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK NODE_RANK MASTER_ADDR MASTER_PORT
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_MCA_ess_base_jobid PMI_RANK PMI_SIZE PMI_JOBID
    PMIX_RANK PMIX_NAMESPACE MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_JOB_ID
    SLURM_JOB_ID SLURM_JOB_NAME SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_NNODES SLURM_NODEID SLURM_STEP_ID SLURM_STEP_NUM_TASKS
    SLURM_JOB_END_TIME PERFWATCH_STEPS
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING PYTORCH_CUDA_ALLOC_CONF
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS PYTHONUNBUFFERED
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_FR_BUFFER_SIZE
    TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE HOME XDG_CACHE_HOME
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG
    TORCH_DISTRIBUTED_DEBUG TORCHINDUCTOR_CACHE_DIR PERFWATCH_AGENT_DIR
    NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_RAS_ADDR NCCL_RAS_ENABLE
    HOSTNAME POD_NAME POD_NAMESPACE WANDB_ENTITY WANDB_PROJECT WANDB_RUN_ID
    GLOO_SOCKET_IFNAME KINETO_USE_DAEMON KINETO_IPC_SOCKET_DIR KINETO_CONFIG""".split()
)
_ALLOWED = re.compile(
    rb"(?:^|\0)((?:%b)=[^\0]{0,%d})(?=\0|\Z)" % ("|".join(sorted(ENVIRONMENT_NAMES)).encode(), VARIABLE_BYTES)
)
_PYTHON_LIBRARY = re.compile(rb"/libpython[\d.]*[a-z]*\.so")
_TORCH_LIBRARY = re.compile(rb"/libtorch(?:_\w+)?\.so")

T = TypeVar("T")


def optional(read: Callable[[], T]) -> T | None:
    """The result, or None where it is unavailable: for what is worth having and not worth failing for."""
    try:
        return read()
    except Unavailable:
        return None


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
    maps = optional(lambda: filesystem.read_bytes(f"{folder}/maps", MAPS_BYTES))
    torch = bool(maps and _TORCH_LIBRARY.search(maps))
    cut = maps is not None and len(maps) >= MAPS_BYTES
    return Private(
        cmdline=optional(lambda: filesystem.read_bytes(f"{folder}/cmdline", ARGUMENTS_BYTES)) or b"",
        environ=optional(lambda: read_environment(filesystem, pid)) or b"",
        executable=optional(lambda: filesystem.readlink(f"{folder}/exe")),
        python_library=bool(maps and _PYTHON_LIBRARY.search(maps)),
        torch_library=None if not maps or (cut and not torch) else torch,
    )


def read_environment(filesystem: Filesystem, pid: int) -> bytes:
    """The allow-listed variables, in the kernel's own form. A value beyond ``VARIABLE_BYTES`` is left out.

    They are picked here, in the child, so that what else a job has in its environment costs nothing further on.
    """
    environ = filesystem.read_bytes(f"{filesystem.proc}/{pid}/environ", ENVIRONMENT_BYTES)
    return b"\0".join(_ALLOWED.findall(environ))


def parse_command(cmdline: bytes) -> tuple[str, ...]:
    """The first words of a command line; empty for a zombie or a kernel thread."""
    words = cmdline[:ARGUMENTS_BYTES].rstrip(b"\0").decode("utf-8", "replace")
    return tuple(words.split("\0", MOST_ARGUMENTS)[:MOST_ARGUMENTS]) if words else ()


def parse_environment(environ: bytes) -> dict[str, str]:
    """The allow-listed variables. Source: the environment at exec; what the program itself sets later is not in it."""
    found = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "replace").partition("=")
        if equals and name in ENVIRONMENT_NAMES:
            found[name] = value
    return found
