"""What captures brought, as the report tells it; whatever an event holds, the rest of the report is made."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfwatch.recording.recording import Event, Recording
from perfwatch.report.captured import Captured, captured
from perfwatch.report.page import as_page
from perfwatch.report.story import Story, tell
from perfwatch.traces.kernel_table import fold
from perfwatch.traces.ncu_rows import read_rows
from tests.sessions import session


def story(facts: dict[str, Any]) -> Story:
    """Of a recording with one capture."""
    return tell(Path("session"), Recording(session(), (), (Event(3.0, "capture", "a window", None, facts),)), 4.0)


def the_only(facts: dict[str, Any]) -> Captured:
    """It."""
    (one,) = captured(story(facts))
    return one


def test_the_kernels_of_a_trace_are_listed_with_their_pass() -> None:
    """The longest first; shares are of what is listed."""
    kernels = [
        {"name": "norm", "family": "norm", "part": "backward", "count": 2, "seconds": 0.1},
        {"name": "gemm", "family": "gemm", "part": "forward", "count": 9, "seconds": 0.3},
    ]
    one = the_only({"summary": "2 steps\nbusy", "report": {"ranks": [{"rank": 3, "kernels": kernels}]}})

    assert [(kernel.name, kernel.part, kernel.count) for kernel in one.kernels] == [
        ("gemm", "forward", 9),
        ("norm", "backward", 2),
    ]
    assert one.kernels[0].share == pytest.approx(0.75)
    assert (one.whose, one.lines, one.counted) == ("rank 3", ("2 steps", "busy"), False)


def test_a_kernel_table_of_ncu_is_shown_with_what_the_counters_say() -> None:
    """Recorded on an H200: bandwidth, tensor cores and efficiency stand beside the time."""
    recorded = Path(__file__).parent.parent / "traces" / "ncu_kernels.csv.gz"
    table = fold(read_rows(gzip.decompress(recorded.read_bytes()).decode().splitlines(keepends=True)))
    facts = {"report": {"kernels": msgspec.to_builtins(table)}}
    one = the_only(facts)

    assert one.counted
    assert one.kernels[0].name == table.rows[0].short_name
    assert one.kernels[0].efficiency == table.rows[0].efficiency
    assert one.kernels[0].seconds == pytest.approx(table.rows[0].time_ns / 1e9)
    assert "tensor cores</th>" in as_page(story(facts))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"report": []},
        {"report": {"ranks": 7}},
        {"report": {"ranks": [{"kernels": [{"name": 7, "seconds": "x"}, None]}]}},
        {"report": {"kernels": {"rows": [{"time_ns": None}, 3]}}},
        {"files": "none", "notes": {"a": 1}, "summary": 3},
    ],
)
def test_facts_of_another_shape_are_left_out(facts: dict[str, Any]) -> None:
    """A newer version may tell of it in another way."""
    one = the_only(facts)

    assert (one.text, one.kernels, one.files) == ("a window", (), ())
    assert "a window" in as_page(story(facts))
