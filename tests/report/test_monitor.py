"""Rows of GPUs as text, CSV and JSON: exact, and what is not known is not a zero."""

import csv
import io
import json
import re
from collections.abc import Iterator

import msgspec
import pytest
from rich.console import Console

from perfwatch.dmon.rows import Occupant, Row
from perfwatch.dmon.table import COLUMNS, GROUPS, chosen, csv_heading, csv_line, heading, json_line, line
from perfwatch_probes.readings import Gpu, GpuActivity, GpuErrors, GpuSample

GPU = Gpu(uuid="GPU-a", index=0, name="NVIDIA H200", power_limit_watts=700.0, memory_bytes=150_754_820_096)
SAMPLE = GpuSample(
    uuid="GPU-a",
    utilisation=1.0,
    memory_utilisation=0.37,
    power_watts=648.4,
    temperature_celsius=51,
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    reasons=0x24,
    memory_used_bytes=40_000_000_000,
    pcie_generation=5,
    pcie_width=16,
)
RATES = {"power_violation_ns": 5e8, "pcie_received_bytes": 2.0**20, "nvlink_sent_kib": 5.0 * 2**10}
ACTIVITY = GpuActivity(uuid="GPU-a", interval_seconds=1.0, graphics=0.999, sm_active=0.8, tensor=0.228, dram=0.37)
RANK = Occupant(pid=733, name="python", rank=0, memory_bytes=2**35, step=812, steps_per_second=4.128)


def row(**changes: object) -> Row:
    """A card at work."""
    facts: dict[str, object] = {
        "number": "0",
        "at": 1_795_175_484.0,
        "gpu": GPU,
        "sample": SAMPLE,
        "rates": RATES,
        "activity": ACTIVITY,
        "errors": GpuErrors(uuid="GPU-a", corrected=0, uncorrected=2),
        "occupants": (RANK,),
        **changes,
    }
    return Row(**facts)  # type: ignore[arg-type]


def printed(one: Row, select: str) -> Iterator[str]:
    """Heading and row, as on a terminal; without the time, which is local."""
    stream = io.StringIO()
    console = Console(file=stream, markup=False, highlight=False)
    for text in (heading(chosen(select)), line(one, chosen(select))):
        console.print(text, soft_wrap=True)
    for text_line in stream.getvalue().splitlines():
        yield re.sub(r"^\d\d:\d\d:\d\d", "HH:MM:SS", text_line)


EXPECTED = """\
time     gpu  pwr temp mtmp util mem gfx  sm occ tens dram fp32 smclk mclk        slowed   used job: rank (process), step, steps per second
                W   °C   °C    %   %   %   %   %    %    %    %   MHz  MHz            by    MiB
HH:MM:SS   0  648   51    -  100  37 100  80   -   23   37    -  1980 3201 power thermal  38146 rank 0 (python 733) step 812 4.13/s
"""


def test_a_row_on_a_terminal() -> None:
    """Two lines of heading, then a line; what is not known is a dash."""
    assert list(printed(row(), "pugcmj")) == EXPECTED.splitlines()


def test_a_card_that_is_lost_says_so() -> None:
    """Instead of a line of dashes."""
    lost = msgspec.structs.replace(GPU, lost=True)

    assert list(printed(row(gpu=lost), "p"))[-1] == "HH:MM:SS   0 the driver no longer reaches this card"


def test_many_processes_are_counted() -> None:
    """The largest are named."""
    people = tuple(Occupant(pid=pid, name="python", memory_bytes=pid) for pid in range(100, 105))

    assert list(printed(row(occupants=people), "j"))[-1].endswith("python 104, python 103, and 3 more")


def test_a_process_of_another_namespace_is_named_by_its_pid_on_the_host() -> None:
    """It is nobody whom we could find."""
    stranger = Occupant(pid=88123, host=True)

    assert list(printed(row(occupants=(stranger,)), "j"))[-1].endswith("host pid 88123")


def test_traffic_comes_from_gpm_or_else_from_counters() -> None:
    """And a counter that is not there is not zero."""
    facts = json.loads(json_line(row()))

    assert facts["pcie_received_mib_per_second"] == 1.0
    assert facts["nvlink_sent_mib_per_second"] == 5.0
    assert facts["nvlink_received_mib_per_second"] is None
    assert facts["power_violation"] == 0.5


def test_what_was_counted_once_has_no_rate() -> None:
    """Not zero: unknown."""
    assert json.loads(json_line(row(rates={})))["power_violation"] is None


def test_json_has_every_column_with_its_unit() -> None:
    """One object, shares from 0 to 1, processes as a list."""
    facts = json.loads(json_line(row()))

    assert set(facts) == {"schema", "time", "gpu", "uuid", "lost"} | {column.name for column in COLUMNS}
    assert (facts["schema"], facts["gpu"], facts["graphics"], facts["fp64"]) == ("perfwatch.dmon/1", "0", 0.999, None)
    assert facts["processes"][0]["rank"] == 0
    assert facts["reasons"] == "power thermal"


def test_csv_lines_fit_their_heading() -> None:
    """Empty cells where nothing is known; a comma inside a cell does no harm."""
    two = row(occupants=(RANK, Occupant(pid=5, name="python")))
    names, values = csv.reader([csv_heading(), csv_line(two)])
    facts = dict(zip(names, values, strict=True))

    assert (facts["uuid"], facts["power_watts"], facts["fp64"]) == ("GPU-a", "648.4", "")
    assert facts["processes"] == "rank 0 (python 733) step 812 4.13/s, python 5"


@pytest.mark.parametrize("letter", sorted(GROUPS))
def test_every_group_has_columns_and_capitals_add_details(letter: str) -> None:
    """And every column belongs to a group."""
    assert chosen(letter)
    assert set(chosen(letter)) <= set(chosen(letter.upper()))
    assert {column.group.lower() for column in COLUMNS} == set(GROUPS)


def test_hostile_names_cannot_steer_the_terminal() -> None:
    """A process may call itself what it likes."""
    assert "\x1b" not in list(printed(row(occupants=(Occupant(pid=5, name="\x1b[2J"),)), "j"))[-1]
