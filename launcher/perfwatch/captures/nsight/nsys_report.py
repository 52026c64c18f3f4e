"""Export a report of Nsight Systems to SQLite with nsys itself, for ``perfwatch.traces.nsys_trace``."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfwatch.captures.nsight.finding import Run, Tool
from perfwatch.errors import TraceUnreadable, no_file

EXPORT_SECONDS = 60.0
MOST_REPORT_BYTES = 512 * 2**20


@contextmanager
def exported(report: Path, tool: Tool, run: Run) -> Iterator[Path]:
    """The report as an SQLite file, gone afterwards.

    Raises TraceUnreadable: missing, too large, or nsys cannot export it within 60 s.
    """
    if not report.is_file():
        raise no_file(report, "perfwatch capture nsys makes one")
    if report.stat().st_size > MOST_REPORT_BYTES:
        raise TraceUnreadable(
            f"{report} is larger than {MOST_REPORT_BYTES // 2**20} MiB and is not read", "a shorter window: --seconds 1"
        )
    with tempfile.TemporaryDirectory(prefix="perfwatch-") as folder:
        database = Path(folder, "window.sqlite")
        finished = run(export_command(tool, report.absolute(), database), EXPORT_SECONDS, None)
        if finished.returncode != 0:
            said = (finished.errors.strip() or finished.output.decode(errors="replace").strip()).splitlines()
            how = "did not export it in time" if finished.returncode is None else "cannot export it"
            raise TraceUnreadable(
                f"nsys {tool.version_text} {how}: {said[-1][:200] if said else 'it said nothing'}",
                "the report is cut, or of a newer nsys: PERFWATCH_NSYS=PATH names another",
            )
        yield database


def export_command(tool: Tool, report: Path, database: Path) -> tuple[str, ...]:
    """To SQLite; pure."""
    return (tool.path, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report))
