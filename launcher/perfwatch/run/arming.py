"""The environment of the child: the agent, and what torch and NCCL offer to who asks. What the user has set stays."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfwatch.captures.kineto.keeper import GPU_DRIVERS, Keeper, arm
from perfwatch.processes.place import Place
from perfwatch.processes.trouble import reason
from perfwatch.run.request import Request
from perfwatch_probes.group_variables import AGENT_VARIABLE, free_port

AGENT_FOLDER = Path(__file__).parents[1] / "agent" / "on_path"
YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True)
class Start:
    """How the job starts. ``words``: lines for stderr. ``keeper``: the processes that keep the profilers' endpoint."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    words: tuple[str, ...] = ()
    keeper: Keeper | None = None


def equipped(
    request: Request, environment: Mapping[str, str], place: Place, drivers: Sequence[Path] = GPU_DRIVERS
) -> Start:
    """How the job of a request starts. A part that cannot be armed is left out, and a line says why.

    Args:
        request: what the user asked for.
        environment: ours, as we got it.
        place: the job's place, where the agent and the profilers' endpoints have their folders.
        drivers: files of which one is there where there is a GPU.
    """
    start = Start(request.command, environment)
    failures = []
    for name, part in _parts(request, place, any(driver.exists() for driver in drivers)):
        try:
            start = part(start)
        except Exception as error:  # of whatever kind: the job is what counts
            failures.append(f"{name}: {reason(error)}")
    if failures:
        line = f"perfwatch: not armed with {', '.join(failures)}; the job runs without"
        start = replace(start, words=(*start.words, line))
    return start


def _parts(request: Request, place: Place, gpus: bool) -> list[tuple[str, Callable[[Start], Start]]]:
    """What a request arms the job with: the name of each part, and what adds it to the start."""
    parts: list[tuple[str, Callable[[Start], Start]]] = []
    if request.agent:
        # Launchers of one job stand below one parent; whichever of them watches is its descendant.
        tracer = os.getppid() if place.shared else os.getpid()
        parts.append(
            ("the agent", lambda start: replace(start, environment=armed(start.environment, place.folder, tracer)))
        )
    parts.append(("NCCL's status port", lambda start: replace(start, environment=armed_groups(start.environment))))
    if request.arm == "torch" and (request.agent or not gpus):
        parts.append(("torch", lambda start: _with_torch(start, place, later=gpus)))
    elif request.arm not in ("none", "torch"):
        parts.append((request.arm, lambda start: _with_nsight(start, request.arm, place)))
    return parts


def _with_torch(start: Start, place: Place, later: bool) -> Start:
    environment, keeper = arm(start.environment, place.folder, later)
    return replace(start, environment=environment, keeper=keeper)


def _with_nsight(start: Start, kind: str, place: Place) -> Start:
    from perfwatch.captures.nsight.arming import prepare  # the launcher is small without it

    prepared = prepare(kind, start.command, start.environment, place.folder)
    return replace(start, command=prepared.command, environment=prepared.environment, words=prepared.words)


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
    """The environment in which NCCL's RAS service has a port that no other job shares: it costs nothing until it is asked.

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
