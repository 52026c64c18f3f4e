"""What Nsight Compute has written, brought into the session and read."""

from pathlib import Path

import msgspec

from perfwatch.captures.capture import Collected, File, Subject, Window
from perfwatch.captures.nsight.finding import Tool
from perfwatch.captures.nsight.ncu_report import read_report
from perfwatch.errors import PerfwatchError
from perfwatch.report.kernels import told_in_short
from perfwatch_probes.tail import tail

NAME = "kernels.ncu-rep"
LONGEST_LOG_BYTES = 2**20
MOST_ROWS = 60  # of the kernel table that go into the recording; the file has all of them
_PROFILING = "==PROF== Profiling"


def log_text(log: Path) -> str:
    """ncu's own words, the last of them; empty as long as there are none."""
    try:
        return tail(log, LONGEST_LOG_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def measured(said: str) -> tuple[str, ...]:
    """How many kernels ncu says that it measured, as a note; none without one."""
    count = said.count(_PROFILING)
    return (f"{count:,} kernel{'s were' if count > 1 else ' was'} measured",) if count else ()


def last_error(said: str) -> str:
    """The last of what ncu calls an error; empty without one."""
    errors = [line for line in said.splitlines() if line.startswith("==ERROR==")]
    return errors[-1].removeprefix("==ERROR==").strip()[:200] if errors else ""


def brought(
    report: Path, tool: Tool, subject: Subject, window: Window, seconds: float, notes: tuple[str, ...]
) -> Collected:
    """A report in the window's folder: the file, and its kernel table where ncu can read it.

    Args:
        report: within the window's folder.
        tool: the ncu that reads it.
        subject: the rank that was measured.
        window: runs ncu.
        seconds: how long the window was open.
        notes: what is said already.
    """
    report.chmod(0o600)
    file = File(
        path=str(report), size_bytes=report.stat().st_size, pid=subject.pid, rank=subject.rank, opens_with="ncu-ui"
    )
    try:
        table = read_report(report, {}, window.run, tool)
    except PerfwatchError as error:
        return Collected((file,), seconds, (*notes, f"the report is there, but could not be read: {error.message}"))
    longest = msgspec.structs.replace(table, rows=table.rows[:MOST_ROWS])
    found = {"kernels": msgspec.to_builtins(longest)}
    return Collected((file,), seconds, notes, summary=told_in_short(table), report=found)
