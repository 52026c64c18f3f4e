"""The columns of ``perfwatch dmon`` and its three forms: text for a terminal, CSV, JSON. One list of columns serves all three."""

import csv
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from perfwatch.dmon.rows import Occupant, Row
from perfwatch.text import clean, json_text
from perfwatch_probes.nvml_metrics import unit

SCHEMA = "perfwatch.dmon/1"
MIB = 2**20
NANOSECONDS = 1e9
MIB_DIGITS = 6  # of traffic in MiB/s
NAMED = 2  # processes named on a line; the others are counted
# NVML's clocks-event reasons worth seeing (nvmlClocksEventReason*); idle and application clocks are no news.
REASONS = {
    0x4: "power", 0x8: "slowdown", 0x10: "sync", 0x20: "thermal", 0x40: "hw thermal", 0x80: "power brake",
}  # fmt: skip
BAD_REASONS = 0x8 | 0x20 | 0x40 | 0x80

Value = float | int | str | None


@dataclass(frozen=True)
class Column:
    """One column. ``group``: the letter that chooses it; ``head``: two words above each other on a terminal."""

    name: str  # in CSV and JSON, with its unit
    group: str
    head: tuple[str, str]
    width: int
    value: Callable[[Row], Value]
    decimals: int = 0
    scale: float = 1.0  # from the value to what is shown on a terminal


def _sample(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.sample, name, None)


def _activity(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.activity, name, None)


def _errors(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.errors, name, None)


def _rate(name: str, scale: float = 1.0) -> Callable[[Row], Value]:
    """Growth of a counter per second."""
    return lambda row: None if (grown := row.rates.get(name)) is None else round(grown * scale, 6)


def _traffic(gpm: str, counter: str, bytes_each: int) -> Callable[[Row], Value]:
    """MiB/s: from GPM, and where there is none from the counter."""
    counted = _rate(counter, bytes_each / MIB)
    return lambda row: found if (found := _activity(gpm)(row)) is not None else counted(row)


COLUMNS: tuple[Column, ...] = (
    Column("power_watts", "p", ("pwr", "W"), 4, _sample("power_watts")),
    Column("power_limit_watts", "P", ("limit", "W"), 5, lambda row: row.gpu.power_limit_watts),
    Column("temperature_celsius", "p", ("temp", "°C"), 4, _sample("temperature_celsius")),
    Column("memory_temperature_celsius", "p", ("mtmp", "°C"), 4, _sample("memory_temperature_celsius")),
    Column("utilisation", "u", ("util", "%"), 4, _sample("utilisation"), scale=100),
    Column("memory_utilisation", "u", ("mem", "%"), 3, _sample("memory_utilisation"), scale=100),
    Column("encoder_utilisation", "U", ("enc", "%"), 3, _sample("encoder_utilisation"), scale=100),
    Column("decoder_utilisation", "U", ("dec", "%"), 3, _sample("decoder_utilisation"), scale=100),
    Column("jpeg_utilisation", "U", ("jpg", "%"), 3, _sample("jpeg_utilisation"), scale=100),
    Column("optical_flow_utilisation", "U", ("ofa", "%"), 3, _sample("optical_flow_utilisation"), scale=100),
    Column("graphics", "g", ("gfx", "%"), 3, _activity("graphics"), scale=100),
    Column("sm_active", "g", ("sm", "%"), 3, _activity("sm_active"), scale=100),
    Column("sm_occupancy", "g", ("occ", "%"), 3, _activity("sm_occupancy"), scale=100),
    Column("tensor", "g", ("tens", "%"), 4, _activity("tensor"), scale=100),
    Column("dram", "g", ("dram", "%"), 4, _activity("dram"), scale=100),
    Column("fp32", "g", ("fp32", "%"), 4, _activity("fp32"), scale=100),
    Column("fp16", "G", ("fp16", "%"), 4, _activity("fp16"), scale=100),
    Column("fp64", "G", ("fp64", "%"), 4, _activity("fp64"), scale=100),
    Column("integer", "G", ("int", "%"), 3, _activity("integer"), scale=100),
    Column("hmma", "G", ("hmma", "%"), 4, _activity("hmma"), scale=100),
    Column("imma", "G", ("imma", "%"), 4, _activity("imma"), scale=100),
    Column("dmma", "G", ("dmma", "%"), 4, _activity("dmma"), scale=100),
    Column("sm_clock_mhz", "c", ("smclk", "MHz"), 5, _sample("sm_clock_mhz")),
    Column("memory_clock_mhz", "c", ("mclk", "MHz"), 4, _sample("memory_clock_mhz")),
    Column("sm_clock_max_mhz", "C", ("smmax", "MHz"), 5, lambda row: row.gpu.sm_clock_max_mhz),
    Column("memory_clock_max_mhz", "C", ("mmax", "MHz"), 4, lambda row: row.gpu.memory_clock_max_mhz),
    Column("reasons", "c", ("slowed", "by"), 13, lambda row: reasons(getattr(row.sample, "reasons", None))),
    Column("power_violation", "v", ("pviol", "%"), 5, _rate("power_violation_ns", 1 / NANOSECONDS), scale=100),
    Column("thermal_violation", "v", ("tviol", "%"), 5, _rate("thermal_violation_ns", 1 / NANOSECONDS), scale=100),
    Column("memory_used_mib", "m", ("used", "MiB"), 6, lambda row: _mib(getattr(row.sample, "memory_used_bytes", None))),
    Column("memory_mib", "M", ("total", "MiB"), 6, lambda row: _mib(row.gpu.memory_bytes)),
    Column("bar1_used_mib", "M", ("bar1", "MiB"), 5, lambda row: _mib(getattr(row.sample, "bar1_used_bytes", None))),
    Column("protected_used_mib", "M", ("ccpm", "MiB"), 5,
           lambda row: _mib(getattr(row.sample, "protected_used_bytes", None))),
    Column("corrected", "e", ("ecc", "corr"), 4, _errors("corrected")),
    Column("uncorrected", "e", ("ecc", "unc"), 3, _errors("uncorrected")),
    Column("remapped_rows_uncorrected", "e", ("rows", "rmap"), 4, _errors("remapped_rows_uncorrected")),
    Column("remap_pending", "E", ("rmap", "pend"), 4, _errors("remap_pending")),
    Column("remap_failed", "E", ("rmap", "fail"), 4, _errors("remap_failed")),
    Column("pcie_replays", "e", ("pcie", "rply"), 4, _sample("pcie_replays")),
    Column("nvlink_errors", "e", ("nvl", "err"), 3, _errors("nvlink_errors")),
    Column("xids", "e", ("xid", ""), 5, lambda row: " ".join(str(xid) for xid in row.xids) or None),
    Column("pcie", "t", ("pcie", "link"), 7, lambda row: _link(row)),
    Column("pcie_received_mib_per_second", "t", ("rxpci", "MiB/s"), 6,
           _traffic("pcie_received_mib_per_second", "pcie_received_bytes", 1)),
    Column("pcie_sent_mib_per_second", "t", ("txpci", "MiB/s"), 6,
           _traffic("pcie_sent_mib_per_second", "pcie_sent_bytes", 1)),
    Column("nvlink_received_mib_per_second", "t", ("rxnvl", "MiB/s"), 6,
           _traffic("nvlink_received_mib_per_second", "nvlink_received_kib", 1024)),
    Column("nvlink_sent_mib_per_second", "t", ("txnvl", "MiB/s"), 6,
           _traffic("nvlink_sent_mib_per_second", "nvlink_sent_kib", 1024)),
    Column("c2c_received_mib_per_second", "T", ("rxc2c", "MiB/s"), 6, _activity("c2c_received_mib_per_second")),
    Column("c2c_sent_mib_per_second", "T", ("txc2c", "MiB/s"), 6, _activity("c2c_sent_mib_per_second")),
    Column("nvlinks_active", "T", ("nvl", "up"), 3, _sample("nvlinks_active")),
    Column("processes", "j", ("job: rank (process), step, steps per second", ""), 0, lambda row: occupied(row)),
)  # fmt: skip
GROUPS = {  # a capital letter adds details
    "p": "power and temperatures",
    "u": "utilisation",
    "g": "what the units did (GPM, Hopper and newer)",
    "c": "clocks and why they are low",
    "v": "share of time slowed by power or heat",
    "m": "memory",
    "e": "errors",
    "t": "PCIe and NVLink traffic",
    "j": "ranks and their steps",
}
WIDE_COLUMNS, WIDE, NARROW = 125, "pugcmj", "pugj"  # what is shown when nothing was chosen
_FIXED = ("time", "gpu", "uuid")


def chosen(groups: str) -> list[Column]:
    """Columns of these groups; a capital letter also means the details of its group."""
    return [column for column in COLUMNS if column.group in groups or column.group.upper() in groups]


def further(metrics: Iterable[str]) -> list[Column]:
    """Columns of GPM metrics that were asked for by name; they stand before the jobs."""
    return [_metric(name) for name in metrics]


def heading(columns: Sequence[Column]) -> Text:
    """Two lines above the rows."""
    lines = []
    for line in (0, 1):
        cells = [f"{('time', '')[line]:8}", f"{('gpu', '')[line]:>3}"]
        cells += [f"{column.head[line]:>{column.width}}" for column in columns]
        lines.append(" ".join(cells).rstrip())
    return Text("\n".join(lines), style="dim")


def line(row: Row, columns: Sequence[Column]) -> Text:
    """One row for a terminal: what is not known is ``-``, what slows a card down stands out."""
    text = Text(time.strftime("%H:%M:%S", time.localtime(row.at)) + f" {row.number:>3}")
    if row.gpu.lost:
        return text.append(" the driver no longer reaches this card", style="bold red")
    for column in columns:
        value = column.value(row)
        alarming = column.name == "reasons" and (getattr(row.sample, "reasons", None) or 0) & BAD_REASONS
        style = "bold red" if alarming or (column.name == "xids" and value) else "dim" if value is None else ""
        text.append(" ").append(f"{shown(value, column):>{column.width}}", style=style)
    text.rstrip()
    return text


def shown(value: Value, column: Column) -> str:
    """A value as a terminal has it."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value * column.scale:.{column.decimals}f}"


def csv_heading(others: Sequence[Column] = ()) -> str:
    """Every column, whatever was chosen: a file is read by programs."""
    return _csv([*_FIXED, *(column.name for column in (*COLUMNS, *others))])


def csv_line(row: Row, others: Sequence[Column] = ()) -> str:
    """Empty where nothing is known; shares from 0 to 1."""
    return _csv([*(_fixed(row).values()), *(column.value(row) for column in (*COLUMNS, *others))])


def json_line(row: Row, others: Sequence[Column] = ()) -> str:
    """One object."""
    facts: dict[str, Any] = {"schema": SCHEMA, **_fixed(row)}
    facts |= {column.name: column.value(row) for column in (*COLUMNS, *others) if column.name != "processes"}
    facts |= {"lost": row.gpu.lost, "xids": row.xids, "processes": row.occupants}
    return json_text(facts)


def occupied(row: Row) -> str | None:
    """Who is on the card, as one cell."""
    people = sorted(row.occupants, key=lambda one: -(one.memory_bytes or 0))
    more = [f"and {len(people) - NAMED} more"] if len(people) > NAMED else []
    return ", ".join([*(_person(one) for one in people[:NAMED]), *more]) or None


def reasons(mask: int | None) -> str | None:
    """Why clocks are low, in words; empty when nothing holds them back."""
    return None if mask is None else " ".join(word for bit, word in REASONS.items() if mask & bit)


def _metric(name: str) -> Column:
    measured = unit(name)
    return Column(
        name,
        "g",
        (name, measured),
        max(len(name), MIB_DIGITS),
        lambda row: row.activity.others.get(name) if row.activity else None,
        scale=100 if measured == "%" else 1,
    )


def _person(one: Occupant) -> str:
    where = f"host pid {one.pid}" if one.host else f"{clean(one.name)} {one.pid}".strip()
    text = where if one.rank is None else f"rank {one.rank} ({where})"
    if one.step is not None:
        text += f" step {one.step}" + ("" if one.steps_per_second is None else f" {one.steps_per_second:.2f}/s")
    return text


def _fixed(row: Row) -> dict[str, Value]:
    return {"time": round(row.at, 3), "gpu": row.number, "uuid": row.gpu.uuid}


def _link(row: Row) -> str | None:
    generation, width = getattr(row.sample, "pcie_generation", None), getattr(row.sample, "pcie_width", None)
    return None if generation is None or width is None else f"{generation}.0x{width}"


def _mib(value: int | None) -> int | None:
    return None if value is None else value // MIB


def _csv(values: Iterable[Value]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(["" if value is None else value for value in values])
    return out.getvalue()
