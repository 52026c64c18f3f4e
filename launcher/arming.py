"""The environment of the child: the agent on PYTHONPATH, and where it may write. What the user has set stays."""

from collections.abc import Mapping
from pathlib import Path

AGENT_FOLDER = Path(__file__).parent / "agent"
YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


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
    result["PERFWATCH_AGENT_DIR"] = str(agent_directory)
    if _restricted(yama):
        result["PERFWATCH_TRACER_PID"] = str(tracer_pid)
    else:
        result.pop("PERFWATCH_TRACER_PID", None)
    return result


def _restricted(yama: Path) -> bool:
    """Only scope 1 can be lifted by a declaration; elsewhere importing ctypes in every process would be a waste."""
    try:
        return yama.read_text().strip() == "1"
    except OSError:
        return False
