"""The measurements of Nsight Compute: ``ncu --import X.ncu-rep --page raw --csv``, one row per kernel, units in a second row.

The text may come from any report: it is read row by row, bounded, and a cell that is no number is a missing one.
Numbers carry thousands separators (``1,980,000``); ``--print-units base`` gives ns and bytes, and the scaled units of a
report printed without it are understood as well.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfwatch.errors import TraceUnreadable
from perfwatch_probes.bounds import LARGEST_NUMBER

METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
)
"""What the kernel table asks ncu for: three passes over each kernel on an H200."""

# What other reports hold instead: the first that is there counts.
_TENSOR = (
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
)
SECTOR_BYTES = 32  # of the L2 cache, on every generation since Maxwell

MOST_KERNELS = 200_000
LONGEST_CELL_CHARACTERS = 64 * 1024
_UNITS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
    "sector": 1.0, "Ksector": 1e3, "Msector": 1e6, "Gsector": 1e9,
    "inst": 1.0, "Kinst": 1e3, "Minst": 1e6, "Ginst": 1e9,
    "%": 1.0, "": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class KernelRun:
    """One kernel as it ran once. None: the report does not hold it, or the card has no such counter."""

    name: str
    time_ns: float | None
    dram_bytes: float | None
    l2_read_bytes: float | None
    l2_write_bytes: float | None
    tensor_percent: float | None
    instructions: float | None


def read_rows(lines: Iterable[str]) -> list[KernelRun]:
    """The kernels of a report, in the order in which they ran.

    Args:
        lines: what ``ncu --import X --page raw --csv`` printed; its own ``==PROF==`` lines are passed over.

    Raises TraceUnreadable for text that is no such table, that measured no time, or that is cut in the middle.
    """
    csv.field_size_limit(LONGEST_CELL_CHARACTERS)
    reader = csv.reader(_table(lines), strict=True)
    try:
        return _read(reader)
    except csv.Error as error:
        raise TraceUnreadable(f"the table of ncu is broken at line {reader.line_num}: {error}", _ADVICE) from None


_ADVICE = "make it with: ncu --import FILE.ncu-rep --page raw --csv --print-units base"


def _table(lines: Iterable[str]) -> Iterator[str]:
    """From the header on: ncu and the program that it ran may have printed before it."""
    began = False
    for line in lines:
        began = began or line.startswith('"ID"')
        if began and not line.startswith("=="):
            yield line


def _read(reader: Iterator[list[str]]) -> list[KernelRun]:
    header = next(reader, None)
    if header is None:
        raise TraceUnreadable("this holds no kernel table of ncu", _ADVICE)
    column = {name: index for index, name in enumerate(header)}
    missing = [name for name in ("Kernel Name", "gpu__time_duration.sum") if name not in column]
    if missing:
        raise TraceUnreadable(
            f"the report holds no {' and no '.join(missing)}",
            f"capture it with perfwatch ncu -- COMMAND, or with: ncu --metrics {','.join(METRICS)}",
        )
    units = next(reader, [])
    runs: list[KernelRun] = []
    for row in reader:
        if len(row) != len(header):
            raise TraceUnreadable(f"the table of ncu is cut after {len(runs)} kernels", _ADVICE)
        if len(runs) >= MOST_KERNELS:
            raise TraceUnreadable(f"the report holds more than {MOST_KERNELS:,} kernels", "capture fewer: --count 1000")
        runs.append(_run(_Row(column, units, row)))
    return runs


class _Row:
    def __init__(self, column: dict[str, int], units: Sequence[str], cells: Sequence[str]) -> None:
        self._column, self._units, self.cells = column, units, cells

    def text(self, name: str) -> str:
        return self.cells[self._column[name]]

    def number(self, name: str) -> float | None:
        """In base units; None for a column that is not there or a cell that holds no number that a counter can have."""
        index = self._column.get(name)
        if index is None:
            return None
        scale = _UNITS.get(self._units[index].partition("/")[0] if index < len(self._units) else "")
        try:
            value = float(self.cells[index].replace(",", ""))
        except ValueError:
            return None
        if scale is None or not 0.0 <= value * scale <= LARGEST_NUMBER:
            return None
        return value * scale


def _run(row: _Row) -> KernelRun:
    tensor = (row.number(name) for name in _TENSOR)
    return KernelRun(
        name=row.text("Kernel Name"),
        time_ns=row.number("gpu__time_duration.sum"),
        dram_bytes=_sum(row.number("dram__bytes_read.sum"), row.number("dram__bytes_write.sum")),
        l2_read_bytes=_bytes(row.number("lts__t_sectors_srcunit_tex_op_read.sum")),
        l2_write_bytes=_bytes(row.number("lts__t_sectors_srcunit_tex_op_write.sum")),
        tensor_percent=next((value for value in tensor if value is not None), None),
        instructions=row.number("smsp__inst_executed.sum"),
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _bytes(sectors: float | None) -> float | None:
    return None if sectors is None else sectors * SECTOR_BYTES
