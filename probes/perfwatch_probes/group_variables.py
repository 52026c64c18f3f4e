"""What the environment of a job says about its process groups: names alone, for ``run`` arms a job before it loads anything."""

import os
import socket

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
AGENT_VARIABLE = (
    "PERFWATCH_AGENT_DIR"  # the folder in which the agent of ``run`` arms the recorder, where nothing else is set
)
PIPE_PREFIX, DUMP_PREFIX = "fr_pipe_", "fr_rank_"
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # the second: torch before 2.9


def free_port(first: int = 20000, last: int = 28000) -> int:
    """A port on the loopback that is not in use, below those that the kernel gives to connections. Raises OSError."""
    for _ in range(64):
        port = first + int.from_bytes(os.urandom(4), "little") % (last - first)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port on the loopback")
