"""The environment of the child: the agent, and what torch and NCCL offer to who asks. What the user has set stays."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfwatch.kineto.keeper import arm
from perfwatch.probes.group_variables import AGENT_VARIABLE, free_port
from perfwatch.running.lock import Place
from perfwatch.running.request import Request

AGENT_FOLDER = Path(__file__).parents[1] / "agent"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))  # NVIDIA, AMD, either of them in WSL
YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def equipped(
    request: Request, environment: Mapping[str, str], place: Place, drivers: Sequence[Path] = GPU_DRIVERS
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """How the job of a request starts: its command and its environment.

    Args:
        request: what the user asked for.
        environment: ours, as we got it.
        place: the job's place, where the agent and the profilers' endpoints have their folders.
        drivers: files of which one is there where there is a GPU.
    """
    if request.agent:
        # Launchers of one job stand below one parent; whichever of them watches is its descendant.
        environment = armed(environment, place.folder, os.getppid() if place.shared else os.getpid())
    environment = armed_groups(environment)
    gpus = any(driver.exists() for driver in drivers)
    if request.arm == "none" or (request.arm == "torch" and gpus and not request.agent):
        return request.command, environment
    if request.arm == "torch":
        return request.command, arm(environment, place.folder, later=gpus)
    from perfwatch.nsight.arming import prepare  # the launcher is small without it

    prepared = prepare(request.arm, request.command, environment, place.folder)
    for line in prepared.words if not request.quiet else ():
        print(line, file=sys.stderr, flush=True)
    return prepared.command, prepared.environment


def armed(
    environment: Mapping[str, str], agent_directory: Path, tracer_pid: int, yama: Path = YAMA_SCOPE
) -> dict[str, str]:
    """The environment with which the job starts.

    Args:
        environment: ours, as we got it.
        agent_directory: where the processes of the job leave their step counts and last words.
        tracer_pid: the launcher that watches; it and its descendants may read the job where Yama restricts ptrace.
        yama: the kernel's setting; a test gives another file.
    """
    result = dict(environment)
    path = environment.get("PYTHONPATH", "")
    # An empty entry would put the working directory on the path: join only what is there.
    result["PYTHONPATH"] = f"{AGENT_FOLDER}:{path}" if path else str(AGENT_FOLDER)
    result[AGENT_VARIABLE] = str(agent_directory)
    if _restricted(yama):
        result["PERFWATCH_TRACER_PID"] = str(tracer_pid)
    else:
        result.pop("PERFWATCH_TRACER_PID", None)
    return result


def armed_groups(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which NCCL's RAS service has a port that no other job shares: it costs nothing until somebody asks.

    torch's flight recorder is armed by the agent, in the very process: in an environment, which travels to other hosts,
    containers and users, the name of a folder that is not there would end each rank that makes its pipe.
    """
    result = dict(environment)
    if "NCCL_RAS_ADDR" not in result and result.get("NCCL_RAS_ENABLE") != "0":
        try:
            result["NCCL_RAS_ADDR"] = f"localhost:{free_port()}"
        except OSError:
            pass  # then it is the usual port, and the answer says whose it is
    return result


def _restricted(yama: Path) -> bool:
    """Only scope 1 can be lifted by a declaration; elsewhere importing ctypes in every process would be a waste."""
    try:
        return yama.read_text().strip() == "1"
    except OSError:
        return False
