"""The family of a kernel, by its name alone; the kernel table: what ncu measured of a real training step, folded."""

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
from perfwatch.traces.families import LONGEST_SHORT_NAME, family, short_name
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


# Every kernel of a decoder's training step on an H200 (torch 2.11), as Kineto, nsys and ncu spell it.
NAMES = [line.split("\t", 1) for line in (Path(__file__).parent / "kernel_names.txt").read_text().splitlines()]

OF_OTHERS = {
    "triton_poi_fused_add_gelu_3": "elementwise",
    "triton_poi_fused__to_copy_0": "copy",
    "triton_red_fused__log_softmax_2": "reduce",
    "triton_per_fused_native_layer_norm_1": "norm",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "norm",
    "triton_tem_fused_mm_4": "gemm",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 128> >(Flash_fwd_params)": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)": "attention",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel__5x_cublas": "gemm",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(T1::Params)": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(cublasSplitKParams<float>)": "gemm",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)": "norm",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>": "copy",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float, float, int>, float>": "optimizer",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "collective",
    "[CUDA memcpy Host-to-Device]": "copy",
    "Memcpy HtoD (Pageable -> Device)": "copy",
    "Memset (Device)": "copy",
    "my_own_kernel": "other",
    "": "other",
}


@pytest.mark.parametrize(("expected", "name"), NAMES, ids=lambda text: text[:40])
def test_a_kernel_of_a_real_step_has_its_family(expected: str, name: str) -> None:
    """Whoever traced it."""
    assert family(name) == expected


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_kernel_of_another_library_has_its_family(name: str) -> None:
    """Triton, FlashAttention, cutlass, cuDNN, apex, older NCCL; what nobody knows is "other"."""
    assert family(name) == OF_OTHERS[name]


def test_a_short_name_says_what_a_generic_loop_applies() -> None:
    """``elementwise_kernel`` alone would say nothing."""
    names = {short_name(name) for _, name in NAMES}

    assert "vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda>" in names
    assert "multi_tensor_apply_kernel<PointwiseOpScalarFunctor>" in names
    assert "reduce_kernel<sum_functor>" in names
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in names
    assert all(len(name) <= LONGEST_SHORT_NAME for name in names)


def test_a_hostile_name_costs_no_time() -> None:
    """A megabyte of nested templates is cut before anything is matched."""
    hostile = "void at::native::elementwise_kernel" + "<(" * 500_000

    assert family(hostile) == "elementwise"
    assert short_name(hostile) == "elementwise_kernel"
