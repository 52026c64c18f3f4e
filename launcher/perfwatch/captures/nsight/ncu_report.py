"""Read a report of Nsight Compute into a kernel table: a .ncu-rep through ncu's own import, or the CSV that ncu printed."""

import gzip
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfwatch.captures.nsight.finding import Run, Tool, find
from perfwatch.errors import TraceUnreadable, no_file
from perfwatch.traces.kernel_table import KernelTable, fold
from perfwatch.traces.ncu_rows import read_rows

IMPORT_SECONDS = 120.0
MOST_BYTES = 1 << 30  # of CSV; some 2.5 kB a kernel with every metric of its session
LONGEST_LINE_CHARACTERS = 1 << 20
HEAD_BYTES = 65536


def read_report(path: Path, environment: Mapping[str, str], run: Run, tool: Tool | None = None) -> KernelTable:
    """The kernel table of a .ncu-rep, .csv or .csv.gz file.

    Args:
        path: the report.
        environment: PATH and what else says where ncu is.
        run: runs ncu.
        tool: the ncu to use; found when it is needed otherwise.

    Raises TraceUnreadable for a file that is missing, cut or of another kind, CaptureUnavailable without ncu.
    """
    if not path.is_file():
        raise no_file(path, "perfwatch ncu -- COMMAND makes one")
    if path.suffix in (".csv", ".gz"):
        return fold(read_rows(_lines(path)))
    with path.open("rb") as file:
        if path.suffix != ".ncu-rep" and b"\0" not in file.read(HEAD_BYTES):  # a report is binary
            raise TraceUnreadable(f"{path}: not an ncu report", "perfwatch ncu -- COMMAND makes one")
    tool = tool or find("ncu", environment, run)
    with tempfile.TemporaryDirectory(prefix="perfwatch-") as folder:
        table = Path(folder, "table.csv")
        command = import_command(tool, path.absolute(), table)  # programs of ours run in the root folder
        finished = run(command, IMPORT_SECONDS, None)
        if finished.returncode is None:
            raise TraceUnreadable(
                f"ncu did not read {path} within {IMPORT_SECONDS:g} s", "try it: " + " ".join(command)
            )
        text = _head(table) or finished.errors + finished.output.decode(errors="replace")
        if finished.returncode != 0 or "==ERROR==" in text or not table.is_file():
            lines = text.strip().splitlines() or ["it wrote no table"]
            said = next((line for line in lines if "ERROR" in line), lines[-1])
            raise TraceUnreadable(
                f"ncu {tool.version_text} cannot read {path}: {said[:300]}",
                "it is cut, of a newer version, or no report of ncu; a newer ncu reads older reports: PERFWATCH_NCU=PATH",
            )
        return fold(read_rows(_lines(table)))


def import_command(tool: Tool, report: Path, table: Path) -> tuple[str, ...]:
    """Print every metric of every kernel of a report into a file; pure."""
    return (
        tool.path, "--import", str(report), "--page", "raw", "--csv", "--print-units", "base", "--log-file", str(table)
    )  # fmt: skip


def _head(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[str]:
    """Line by line, bounded: a line or a file beyond all measure is no table of ours. Unpacks .gz within the same bound."""
    opened = gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else path.open(errors="replace")
    with opened as file:
        total = 0
        try:
            for line in iter(lambda: file.readline(LONGEST_LINE_CHARACTERS), ""):
                total += len(line)
                if total > MOST_BYTES or len(line) >= LONGEST_LINE_CHARACTERS:
                    raise TraceUnreadable(f"{path} is too large for a table of kernels", "capture fewer: --count 1000")
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceUnreadable(f"{path} is damaged: {error}", "copy it again") from None
