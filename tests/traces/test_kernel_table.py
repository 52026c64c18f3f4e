"""The kernel table: what ncu measured of a real training step, folded, and what it makes of a broken report."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from perfwatch.errors import TraceUnreadable
from perfwatch.report.kernels import KernelsReport, kernels_csv, kernels_json
from perfwatch.traces.kernel_table import fold
from perfwatch.traces.ncu_rows import KernelRun, read_rows
from perfwatch.traces.passes import initialising, passes

# 330 consecutive kernels of a decoder (55 M parameters, bf16 autocast, AdamW) on an H200, ncu 2025.3.1: the last layers
# of a backward pass, the optimizer, a whole forward pass and the beginning of the next backward.
RECORDED = gzip.decompress((Path(__file__).parent / "ncu_kernels.csv.gz").read_bytes()).decode()
RUNS = read_rows(RECORDED.splitlines(keepends=True))


def run(name: str, time_ns: float | None = 1000.0, **measured: float | None) -> KernelRun:
    """A kernel of which nothing else is known."""
    nothing: dict[str, float | None] = dict.fromkeys(
        ("dram_bytes", "l2_read_bytes", "l2_write_bytes", "tensor_percent", "instructions")
    )
    return KernelRun(name, time_ns, **{**nothing, **measured})


def test_every_kernel_of_the_report_is_read_in_base_units() -> None:
    """Thousands separators and the row of units are understood."""
    first = RUNS[0]

    assert len(RUNS) == 330
    assert (first.time_ns, first.dram_bytes, first.l2_read_bytes) == (3936.0, 33792.0, 48 * 32.0)
    assert (first.tensor_percent, first.instructions) == (0.0, 1336.0)


def test_the_passes_of_a_real_step_are_told_by_landmarks() -> None:
    """Backward, optimizer, forward, backward: three changes, each at the kernel where it happens."""
    found = passes(run.name for run in RUNS)
    changes = [(index, one) for index, one in enumerate(found) if index == 0 or one != found[index - 1]]

    assert [one for _, one in changes] == ["backward", "optimizer", "forward", "backward"]
    assert [index for index, _ in changes][2:] == [171, 303]  # the embedding's gather, and the loss' backward


def test_the_sums_of_the_table_are_those_of_the_report() -> None:
    """By kernel, by family and by pass every nanosecond is counted once."""
    table = fold(RUNS)
    total = sum(run.time_ns or 0.0 for run in RUNS)

    assert table.time_ns == total
    for rows in (table.rows, table.families, table.passes):
        assert sum(row.time_ns for row in rows) == pytest.approx(total)
        assert sum(row.count for row in rows) == 330
        assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert [row.time_ns for row in table.rows] == sorted((row.time_ns for row in table.rows), reverse=True)


def test_the_efficiency_is_the_time_weighted_height_below_the_nearer_roof() -> None:
    """Two kernels by hand: one at half of the highest DRAM rate, one at 90 % of the tensor cores."""
    table = fold(
        [
            run("stream_copy_kernel", 1000.0, dram_bytes=4_000_000.0, tensor_percent=0.0),
            run("elementwise_kernel", 3000.0, dram_bytes=6_000_000.0, tensor_percent=0.0),
            run("nvjet_sm90_tst", 4000.0, dram_bytes=0.0, tensor_percent=90.0),
        ]
    )

    assert table.dram_max_gb_per_second == 4000.0
    assert table.efficiency == pytest.approx((1000 * 1.0 + 3000 * 0.5 + 4000 * 0.9) / 8000)


def test_a_real_step_comes_to_its_efficiency() -> None:
    """The matrix products near their roof, the copies far below it."""
    table = fold(RUNS)
    families = {family.name: family for family in table.families}

    assert table.efficiency == pytest.approx(0.6245, abs=1e-3)
    assert table.dram_max_gb_per_second == pytest.approx(4398.8, abs=0.1)
    assert table.tensor_max_percent == 100.0
    assert (families["gemm"].efficiency or 0) > 0.8 > 0.4 > (families["copy"].efficiency or 1)


def test_a_counter_that_tops_out_at_half_is_measured_against_half() -> None:
    """A card whose busiest product shows 49.6 % is at its roof."""
    assert fold([run("gemm", tensor_percent=49.6), run("gemm2", tensor_percent=30.0)]).tensor_max_percent == 50.0
    assert fold([run("gemm", tensor_percent=49.6), run("gemm2", tensor_percent=61.0)]).tensor_max_percent == 100.0


def test_kernels_that_draw_the_weights_count_zero_times() -> None:
    """And so does what stands between them; a drawing in the middle of training counts."""
    draw = "void at::native::distribution_elementwise_grid_stride_kernel<normal_and_transform>"
    names = [draw, "FillFunctor", draw, "vectorized_elementwise_kernel", "nvjet_sm90_tst", draw]

    assert initialising(names) == 3
    assert fold([run(name) for name in names]).time_ns == 3000.0
    assert initialising(names[3:]) == 0


def test_what_was_not_measured_is_not_zero() -> None:
    """No counter, no efficiency; no time, not in the table, but said so."""
    table = fold([run("my_kernel"), run("my_kernel", None)])

    assert (table.efficiency, table.rows[0].dram_gb_per_second, table.unmeasured_kernels) == (None, None, 1)
    assert "1 were not measured" in " ".join(shown(table).split())


def shown(table: object, width: int = 80) -> str:
    """As a terminal of this width gets it."""
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(KernelsReport(table, top=3))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_fits_a_terminal_and_says_more_on_a_wide_one() -> None:
    """Names give way, figures do not."""
    narrow, wide = shown(fold(RUNS)), shown(fold(RUNS), 140)

    assert max(map(len, narrow.splitlines())) <= 80
    assert "576.7 us" in narrow
    assert "and 58 more kernels" in narrow
    assert "L2 READ" in wide
    assert "L2 READ" not in narrow


def test_csv_and_json_hold_every_row() -> None:
    """With the full names, for programs."""
    table = fold(RUNS)
    rows = list(csv.DictReader(io.StringIO(kernels_csv(table))))
    parsed = json.loads(kernels_json(table))

    assert len(rows) == len(table.rows) == len(parsed["rows"]) == 61
    assert float(rows[0]["time_ns"]) == table.rows[0].time_ns == parsed["rows"][0]["time_ns"]
    assert parsed["schema"] == "perfwatch.kernels/1"
    assert parsed["efficiency"] == table.efficiency


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no kernel table"),
        ("==PROF== Connected\nhello\n", "no kernel table"),
        ('"ID","Kernel Name"\n', "no gpu__time_duration.sum"),
        (RECORDED[:90_000], "cut after|is broken"),
        (RECORDED.replace('"0","958"', '"0","958","one cell more"', 1), "cut after 0 kernels"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n' + '"' + "x" * 200_000, "broken"),
    ],
)
def test_a_broken_report_is_refused_with_a_reason(text: str, says: str) -> None:
    """Empty, of another kind, without times, cut in the middle, hostile."""
    with pytest.raises(TraceUnreadable, match=says):
        read_rows(text.splitlines(keepends=True))


def test_a_cell_that_is_no_number_is_missing() -> None:
    """ncu prints n/a for what a card has not got; a scaled unit is brought back to its base."""
    text = (
        '"ID","Kernel Name","gpu__time_duration.sum","smsp__inst_executed.sum","dram__bytes_read.sum"\n'
        '"","","us","inst","Mbyte"\n"0","one","1,500.5","n/a","inf"\n'
    )

    assert read_rows(text.splitlines()) == [replace(run("one"), time_ns=1_500_500.0)]
