"""``perfwatch ncu``: run a program a second time, bounded, under Nsight Compute, and return the kernel table."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfwatch.captures.nsight.finding import Tool, find, options
from perfwatch.captures.nsight.ncu_command import Choice, run_command
from perfwatch.captures.nsight.ncu_report import read_report
from perfwatch.captures.nsight.ncu_session import check_age
from perfwatch.captures.nsight.permission import check_counters, refused
from perfwatch.errors import CaptureFailed, UsageError
from perfwatch.processes.programs import run_program
from perfwatch.traces.kernel_table import KernelTable

LIMIT_SECONDS = 600.0
END_SECONDS = 10.0  # between asking ncu to end and making it
_LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class Measured:
    """A finished second run."""

    report: Path
    table: KernelTable
    seconds: float


def measure(
    program: Sequence[str],
    choice: Choice,
    report: Path,
    environment: Mapping[str, str],
    limit_seconds: float = LIMIT_SECONDS,
    tell: Callable[[int, int], None] = lambda done, total: None,
    proc: Path = Path("/proc"),
) -> Measured:
    """Run the program under ncu until the chosen kernels are measured, then end it; its streams are the terminal's.

    Args:
        program: what to run.
        choice: which kernels.
        report: where the .ncu-rep goes; must not exist.
        environment: of the program.
        limit_seconds: after which it is ended, whatever was measured.
        tell: told how many of how many kernels are measured.

    Raises PermissionDenied, CaptureUnavailable, UsageError before anything runs; CaptureFailed when nothing was measured.
    """
    check_counters(proc)
    tool = find("ncu", environment, run_program)
    listed = options(tool, run_program)
    check_age(tool, listed)
    log = report.with_suffix(".log")
    _check_room(report, log)
    began = time.monotonic()
    command = run_command(tool, choice, report, log, program, kill="--kill" in listed)
    try:
        ended = _watch(command, environment, log, choice.count, began + limit_seconds, tell)
        said = _tail(log)
    finally:
        log.unlink(missing_ok=True)
    if denied := refused(said):
        raise denied
    if not report.is_file():
        raise _nothing(tool, choice, said, ended, limit_seconds)
    return Measured(report, read_report(report, environment, run_program, tool), time.monotonic() - began)


def _check_room(report: Path, log: Path) -> None:
    """Raises UsageError for a report that is there already, or a folder that takes none."""
    if report.exists():
        raise UsageError(f"{report} exists already", "name another file: --output FILE.ncu-rep")
    try:
        log.touch(mode=0o600)
    except OSError as error:
        raise UsageError(
            f"{report.parent} cannot be written to: {error.strerror}", "name a file elsewhere: --output /tmp/k.ncu-rep"
        ) from None


def _watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    count: int,
    ends: float,
    tell: Callable[[int, int], None],
) -> int | None:
    """The exit code; None when it had to be ended. A Ctrl-C reaches the program by itself, then us."""
    child = subprocess.Popen(list(command), env=dict(environment))
    try:
        while (left := ends - time.monotonic()) > 0:
            try:
                return child.wait(min(left, 0.25))
            except subprocess.TimeoutExpired:
                tell(_measured(log), count)
        return None
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _measured(log: Path) -> int:
    return _tail(log).count("==PROF== Profiling")


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _nothing(tool: Tool, choice: Choice, said: str, ended: int | None, limit_seconds: float) -> CaptureFailed:
    errors = [line.removeprefix("==ERROR== ") for line in said.splitlines() if line.startswith("==ERROR==")]
    if errors:
        return CaptureFailed(f"ncu {tool.version_text} measured nothing: {errors[0][:300]}", "see its output above")
    if ended is None:
        return CaptureFailed(
            f"no report within {limit_seconds:g} s: the program was ended",
            "--limit SECONDS gives it longer, --skip 0 begins at once",
        )
    return CaptureFailed(
        f"the program ended (exit code {ended}) before a chosen kernel was measured",
        f"choose others: --kernel REGEX, or begin earlier: --skip 0 (now {choice.skip})",
    )
