"""The kernel table on a terminal, as CSV and as JSON: one table, three forms."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.text import clean, json_text
from perfwatch.traces.kernel_table import Group, KernelRow, KernelTable

SCHEMA = "perfwatch.kernels/1"
GAP = 2
WIDE_COLUMNS = 132  # from here on the L2 cache and the instructions have room beside the name


@dataclass(frozen=True)
class KernelsReport:
    """A kernel table, ready to be printed; ``top`` limits the rows, never the sums."""

    table: KernelTable
    top: int = 25

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the efficiency, the passes, the families, and the longest kernels."""
        table = self.table
        yield Text.assemble(
            ("efficiency ", "bold"),
            (_percent(table.efficiency), "bold"),
            f" of the nearer roof, over {table.kernels - table.initialising_kernels:,} kernels in {_time(table.time_ns)}",
        )
        yield Text(_roofs(table), style="dim")
        yield from self._groups("PASS", table.passes)
        yield from self._groups("FAMILY", table.families)
        yield self._kernels(options.max_width)
        if len(table.rows) > self.top:
            yield Text(f"and {len(table.rows) - self.top} more kernels (--top, --csv, --json)", style="dim")

    def _groups(self, title: str, groups: tuple[Group, ...]) -> Iterator[RenderableType]:
        rows = [
            (group.name, f"{group.count:,}", _time(group.time_ns), _percent(group.share), _percent(group.efficiency))
            for group in groups
        ]
        yield _table((title, "COUNT", "TIME", "SHARE", "EFFICIENCY"), rows, words=1)

    def _kernels(self, columns: int) -> Table:
        titles: tuple[str, ...] = ("KERNEL", "PASS", "COUNT", "TIME", "SHARE", "GB/s", "TENSOR", "EFF")
        if columns >= WIDE_COLUMNS:
            titles += ("L2 READ", "L2 WRITE", "INSTR")
        rows = [_cells(row)[: len(titles)] for row in self.table.rows[: self.top]]
        others = sum(max(len(cell) for cell in cells) + GAP for cells in list(zip(titles, *rows, strict=True))[1:])
        room = max(len(titles[0]), columns - others - GAP)
        return _table(titles, [(_cut(row[0], room), *row[1:]) for row in rows], words=2)


def _cells(row: KernelRow) -> tuple[str, ...]:
    return (
        clean(row.short_name),
        row.training_pass,
        f"{row.count:,}",
        _time(row.time_ns),
        _percent(row.share),
        "-" if row.dram_gb_per_second is None else f"{row.dram_gb_per_second:,.0f}",
        "-" if row.tensor_percent is None else f"{row.tensor_percent:.0f} %",
        _percent(row.efficiency),
        _scaled(row.l2_read_bytes),
        _scaled(row.l2_write_bytes),
        _scaled(row.instructions),
    )


def told_in_short(table: KernelTable) -> str:
    """The efficiency, and the families that take the most time: one line."""
    longest = sorted(table.families, key=lambda group: -group.time_ns)[:3]
    shares = ", ".join(f"{group.name} {_percent(group.share)} at {_percent(group.efficiency)}" for group in longest)
    return f"efficiency {_percent(table.efficiency)} over {table.kernels:,} kernels in {_time(table.time_ns)}: {shares}"


def kernels_json(table: KernelTable) -> str:
    """One JSON object, every row."""
    return json_text({"schema": SCHEMA, **msgspec.to_builtins(table)})


def kernels_csv(table: KernelTable) -> str:
    """One line per kernel and pass under a header; an empty cell is what was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fields = KernelRow.__struct_fields__
    writer.writerow(fields)
    for row in table.rows:
        writer.writerow(["" if (value := getattr(row, name)) is None else value for name in fields])
    return text.getvalue()


def _roofs(table: KernelTable) -> str:
    dram = "not measured" if table.dram_max_gb_per_second is None else f"{table.dram_max_gb_per_second:,.0f} GB/s"
    words = f"roofs: DRAM {dram} (the highest seen here), tensor {table.tensor_max_percent:.0f} %"
    if table.initialising_kernels:
        words += f"; {table.initialising_kernels:,} kernels that set the weights are left out"
    if table.unmeasured_kernels:
        words += f"; {table.unmeasured_kernels:,} were not measured"
    return words


def _cut(name: str, columns: int) -> str:
    return name if len(name) <= columns else name[: max(0, columns - 3)] + "..."


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: int) -> Table:
    """Columns of words to the left, of figures to the right."""
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for index, title in enumerate(titles):
        grid.add_column(title, justify="left" if index < words else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    return grid


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f} {unit}"
    return f"{nanoseconds / 1e3:.1f} us"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _scaled(value: float | None) -> str:
    """With a decimal prefix: 1.2 G."""
    if value is None:
        return "-"
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {prefix}"
    return f"{value:.0f}"
