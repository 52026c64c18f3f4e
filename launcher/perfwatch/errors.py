"""Every error that a user can meet, with the advice that ends it. Caught once, in ``perfwatch.cli``.

PerfwatchError                    1  something inside perfwatch failed
├── UsageError                    2  the command line does not make sense
├── NoSuchTarget                  3  no such process, or it ended or was replaced while we looked
├── NotATrainingJob               3  the process is alive, but nothing in its tree is Python
├── SessionUnreadable             2  a session folder that cannot be read (missing, torn, newer)
├── SessionUnwritable             2  no local disk takes the recording
├── TraceUnreadable               2  a trace or report of a profiler that is cut, hostile, or of another kind
├── CaptureUnavailable           61  that profiler is not there, or the job is not armed
├── CaptureRefused               62  a guard rail says no: it could harm the job or another profiler now
├── CaptureFailed                63  the window was tried and brought nothing; the job goes on
├── OutputUnwritable             74  stdout takes nothing, as on a full disk
└── PermissionDenied             77  the kernel does not let us look at that process, or read that file
"""

import importlib.util
import shlex
import sys
from pathlib import Path

# Exit codes of ``attach`` and ``replay`` by state; ``gone`` splits by how it ended. Stable within a major version.
EXIT_CODES = {
    "healthy": 0,
    "busy": 10,
    "slow": 20,
    "hung": 30,
    "finished": 40,
    "crashed": 41,
    "inconclusive": 50,
    "gate_failed": 60,
}
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class PerfwatchError(Exception):
    """What happened and why (the message), the exact command that fixes it (``advice``), and the exit code."""

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


class UsageError(PerfwatchError):
    """The command line does not make sense."""

    exit_code = 2


class NoSuchTarget(PerfwatchError):
    """No such process, or it ended or was replaced while we looked."""

    exit_code = 3


class NotATrainingJob(PerfwatchError):
    """The process is alive, but nothing in its tree is Python."""

    exit_code = 3


class SessionUnreadable(PerfwatchError):
    """A session folder that cannot be read: missing, not ours, or written by a newer major version."""

    exit_code = 2


class SessionUnwritable(PerfwatchError):
    """No local disk takes the recording; a diagnosis goes on without one."""

    exit_code = 2


class TraceUnreadable(PerfwatchError):
    """A trace or report of a profiler that cannot be read: cut, too large, hostile, or of another kind."""

    exit_code = 2


def no_file(path: Path, advice: str) -> TraceUnreadable:
    """What to raise where a report should be."""
    return TraceUnreadable(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}", advice)


class CaptureUnavailable(PerfwatchError):
    """That profiler is not there, or the job is not armed."""

    exit_code = 61


class CaptureRefused(PerfwatchError):
    """A guard rail says no: the window could harm the job, or another profiler, now."""

    exit_code = 62


class CaptureFailed(PerfwatchError):
    """The window was tried and brought nothing; the job goes on."""

    exit_code = 63


class OutputUnwritable(PerfwatchError):
    """Stdout takes nothing, as on a full disk: what was to be said is lost, but for what stderr takes."""

    exit_code = 74  # EX_IOERR of sysexits.h, as 77 is its EX_NOPERM


class PermissionDenied(PerfwatchError):
    """The kernel does not let us look at that process, or read that file."""

    exit_code = 77


def install_command(*requirements: str) -> str:
    """The shell command that adds packages to the environment that perfwatch runs in; uv makes environments without pip."""
    python = sys.executable
    if importlib.util.find_spec("pip") is not None:
        return shlex.join((python, "-m", "pip", "install", *requirements))
    return shlex.join(("uv", "pip", "install", "--python", python, *requirements))
