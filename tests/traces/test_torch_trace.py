"""What a torch trace says: shares, passes, gaps and where the host was, on small traces and on one of a real run.

A trace is the job's file: cut, endless, hostile or of another kind, it ends in a sentence, soon.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfwatch.errors import TraceUnreadable
from perfwatch.traces.intervals import length, overlap, union, without
from perfwatch.traces.torch_events import events
from perfwatch.traces.torch_host import Thread, innermost, is_user
from perfwatch.traces.torch_summary import summary
from perfwatch.traces.torch_trace import read
from perfwatch_probes.readings import TorchTrace
from tests.traces.kineto_text import ENGINE, launched, span, text, window, write

REAL = Path(__file__).parent / "ddp_h200.pt.trace.json.gz"
SICK = Path(__file__).parent / "sick_h200.pt.trace.json.gz"
INTERVALS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)


def folded(folder: Path, *events: Any) -> TorchTrace:
    """The reading of a trace that lasts a millisecond."""
    flat = [one for part in events for one in (part if isinstance(part, list) else [part])]
    return read(write(folder / "t.gz", [window(0, 1000), *flat]), 100, 0)


def seen() -> dict[str, Any]:
    """Something that ran on the card from the first moment on: only from then on is anything known of it."""
    return span("gpu_memset", "Memset (Device)", 0, 0.5, 7)


def step(end: float, begin: float | None = None) -> dict[str, Any]:
    """An optimizer's step."""
    return span("user_annotation", "Optimizer.step#AdamW.step", end - 50 if begin is None else begin, end)


@given(INTERVALS, INTERVALS)
def test_sets_of_time_add_up(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    """What two sets share and what only the first has are together the first."""
    first, second = union(one), union(other)

    assert length(overlap(first, second)) + length(without(first, second)) == pytest.approx(length(first))
    assert overlap(without(first, second), second) == []
    assert union([*first, *second]) == union([*one, *other])


def test_busy_share_counts_overlapping_kernels_once(tmp_path: Path) -> None:
    """Two streams at the same time are one card that is busy."""
    trace = folded(tmp_path, seen(), launched("gemm", 1, 100, 300, 1), launched("gemm", 2, 200, 400, 2))

    assert trace.gpu_busy_share == pytest.approx(0.3, abs=1e-3)


def test_trace_of_a_job_that_did_nothing_is_said_to_be_empty(tmp_path: Path) -> None:
    """It may have been asked before its training began."""
    assert summary([folded(tmp_path)]) == ["nothing of torch ran in the window"]


def test_card_is_judged_from_its_first_kernel_on(tmp_path: Path) -> None:
    """What was launched before the window runs on in it and is not in the trace: that is not idleness."""
    trace = folded(tmp_path, launched("gemm", 1, 600, 1000, 1))

    assert trace.gpu_busy_share == 1.0


def test_trace_without_a_card_says_nothing_of_one(tmp_path: Path) -> None:
    """Missing is not zero."""
    trace = folded(tmp_path, span("cpu_op", "aten::mm", 0, 10))

    assert trace.gpu_busy_share is None
    assert trace.exposed_communication_share is None
    assert "no GPU in this trace" in "\n".join(summary([trace]))


def test_kernels_that_run_only_after_the_window_are_missed_with_advice(tmp_path: Path) -> None:
    """A host that is many steps ahead of its card: a window of a few steps holds their launches alone."""
    trace = folded(
        tmp_path, span("cpu_op", "aten::mm", 0, 10), span("cuda_runtime", "cudaLaunchKernel", 2, 4), step(900)
    )
    lines = "\n".join(summary([trace]))

    assert trace.gpu_busy_share is None
    assert "1 kernels were launched and none of them ran in the window" in lines
    assert "--seconds 2" in lines
    assert "no GPU in this trace" not in lines


def test_pass_of_a_kernel_is_that_of_its_launch(tmp_path: Path) -> None:
    """Forward on the training thread, backward on autograd's, optimizer in its annotation."""
    trace = folded(
        tmp_path,
        span("cpu_op", "aten::linear", 0, 20),
        launched("f_gemm", 5, 100, 200, 1),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 30, 60, ENGINE),
        launched("b_gemm", 40, 200, 400, 2, ENGINE),
        step(130, 80),
        launched("multi_tensor_apply_kernel", 90, 400, 500, 3),
    )

    assert {one.name: one.part for one in trace.kernels} == {
        "f_gemm": "forward",
        "b_gemm": "backward",
        "multi_tensor_apply_kernel": "optimizer",
    }
    assert trace.parts == {"backward": 0.5, "forward": 0.25, "optimizer": 0.25}


def test_collective_beside_a_kernel_is_not_exposed(tmp_path: Path) -> None:
    """Only what nothing hides is lost: 100 of 300 microseconds here."""
    trace = folded(
        tmp_path,
        seen(),
        launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1, 100, 400, 1),
        launched("gemm", 2, 200, 400, 2),
    )

    assert trace.communication_share == pytest.approx(0.3, abs=1e-3)
    assert trace.exposed_communication_share == pytest.approx(0.1, abs=1e-3)
    assert trace.kernels[0].exposed_seconds == pytest.approx(100e-6)


def test_pageable_copies_are_counted_with_their_bytes(tmp_path: Path) -> None:
    """And how long nothing but a copy ran."""
    trace = folded(
        tmp_path,
        seen(),
        launched("Memcpy HtoD (Pageable -> Device)", 1, 100, 300, 1, bytes=4096),
        launched("Memcpy HtoD (Pinned -> Device)", 2, 400, 500, 2, bytes=99),
        launched("gemm", 3, 400, 600, 3),
    )

    assert (trace.pageable_copies, trace.pageable_copy_bytes) == (1, 4096)
    assert trace.copy_share == pytest.approx(0.3, abs=1e-3)
    assert trace.exposed_copy_share == pytest.approx(0.2, abs=1e-3)


def test_idle_card_is_put_down_to_what_the_training_thread_does(tmp_path: Path) -> None:
    """Data, the optimizer, launching, and Python where nothing else is known; each moment once."""
    trace = folded(
        tmp_path,
        seen(),
        span("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 200),
        span("cpu_op", "aten::linear", 200, 300),
        launched("gemm", 290, 300, 700, 1),
        step(900, 800),
    )

    assert trace.idle == pytest.approx(
        {"sync": 0.0, "data": 0.2, "optimizer": 0.1, "backward": 0.0, "forward": 0.1, "python": 0.2}, abs=1e-3
    )
    assert trace.launch_bound_share == pytest.approx(0.4, abs=1e-3)


def test_wait_for_the_card_is_told_with_the_programs_line(tmp_path: Path) -> None:
    """The innermost frame that is neither torch's nor Python's; without stacks, the operation."""
    wait = span("cuda_runtime", "cudaStreamSynchronize", 500, 700)
    item = span("cpu_op", "aten::item", 490, 710)
    frames = [
        span("python_function", "train.py(12): <module>", 0, 1000),
        span("python_function", "train.py(30): log", 400, 800),
        span("python_function", "torch/_tensor.py(1): item", 450, 750),
    ]
    with_stacks, without_stacks = folded(tmp_path, wait, item, *frames), folded(tmp_path, wait, item)

    assert [(one.where, one.count) for one in with_stacks.syncs] == [("train.py(30): log", 1)]
    assert [one.where for one in without_stacks.syncs] == ["aten::item"]
    assert with_stacks.syncs[0].seconds == pytest.approx(200e-6)
    assert "train.py(30): log (1 times" in "\n".join(summary([with_stacks]))


def test_phases_of_a_step_fill_it(tmp_path: Path) -> None:
    """Between the ends of two steps: data, forward, backward, optimizer, and the rest."""
    trace = folded(
        tmp_path,
        step(100),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 200),
        span("cpu_op", "aten::linear", 220, 400),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 420, 600, ENGINE),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 650, 700, ENGINE),
        step(900, 800),
    )

    assert trace.step_seconds == pytest.approx(800e-6)
    assert trace.phases == pytest.approx(
        {"data": 100e-6, "forward": 180e-6, "backward": 280e-6, "optimizer": 100e-6, "outside": 140e-6}
    )


def test_wait_within_a_step_is_not_the_forward_pass(tmp_path: Path) -> None:
    """Between the operations of a forward pass and between two backward passes; named where there are stacks, with the line."""
    bounds = [step(100), step(900, 800)]
    ran = [
        span("cpu_op", "aten::linear", 100, 110),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 110, 130),
        span("cpu_op", "aten::linear", 600, 620),
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 620, 650),
    ]
    frames = [
        span("python_function", "train.py(66): main", 0, 1000),
        span("python_function", "queue.py(154): get", 130, 230),
        span("python_function", "<built-in method acquire of _thread.lock object at 0x7f9c>", 140, 220),
        span("python_function", "logging/__init__.py(922): acquire", 230, 590),
        span("python_function", "<built-in method acquire of _thread.RLock object at 0x7f9c>", 240, 580),
    ]
    known, unknown = folded(tmp_path, *bounds, *ran, *frames), folded(tmp_path, *bounds, *ran)

    assert unknown.phases["forward"] == known.phases["forward"] == pytest.approx(30e-6)
    assert unknown.phases["backward"] == known.phases["backward"] == pytest.approx(50e-6)
    assert unknown.phases["outside"] == pytest.approx(620e-6)
    assert (known.phases["waits for a lock"], known.phases["waits for a queue"]) == pytest.approx((340e-6, 100e-6))
    assert [one.name for one in known.outside_frames] == ["train.py(66): main"]
    assert known.outside_frames[0].seconds == pytest.approx(620e-6)
    said = "\n".join(summary([known]))
    assert "waits for a lock 42%" in said
    assert "mostly at train.py(66): main" in said


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ("<built-in function sleep>", "is in time.sleep()"),
        ("<built-in method recv_into of _socket.socket object at 0x7f>", "waits for a socket"),
        ("<built-in method poll of select.poll object at 0x7f>", "waits for a socket"),
        ("subprocess.py(1259): wait", "waits for a subprocess"),
        ("<built-in method get of _queue.SimpleQueue object at 0x7f>", "waits for a queue"),
        ("multiprocessing/queues.py(96): get", "waits for a queue"),
        ("<built-in method get of dict object at 0x7f>", None),
        ("my/queues.py(3): get", None),
    ],
)
def test_wait_is_named_by_its_frame(frame: str, kind: str | None) -> None:
    """A call of Python that waits, by its name in a trace with stacks."""
    assert list(Thread(frames=[(0.0, 1.0, frame)]).blocked) == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("ampere_sgemm_128x64_nn", True),
        ("cutlass_80_simt_sgemm_256x128_8x4_nn_align1", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x64_stage3_warpsize2x2x1_tensor16x8x8", False),
        ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", False),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", False),
    ],
)
def test_products_outside_the_tensor_cores_are_told_by_name(tmp_path: Path, name: str, full: bool) -> None:
    """FP32 in, FP32 arithmetic: TF32 would take them."""
    trace = folded(tmp_path, launched(name, 1, 100, 300, 1))

    assert trace.full_precision_gemm_share == (1.0 if full else 0.0)


def test_plain_attention_is_recognised_with_its_share_of_the_card(tmp_path: Path) -> None:
    """What was launched inside of SDPA's math fallback, of all that ran."""
    trace = folded(
        tmp_path,
        span("cpu_op", "aten::_scaled_dot_product_attention_math", 0, 50),
        launched("softmax_warp_forward", 10, 100, 300, 1),
        span("cpu_op", "aten::linear", 50, 80),
        launched("gemm", 60, 300, 500, 2),
    )

    assert (trace.math_attention_calls, trace.math_attention_share) == (1, 0.5)
    assert "SDPA's math fallback" in "\n".join(summary([trace]))


@pytest.mark.parametrize(
    ("frame", "ours"),
    [
        ("train.py(12): <module>", True),
        ("my/package/model.py(3): forward", True),
        ("torch/nn/modules/linear.py(134): forward", False),
        ("threading.py(1002): _bootstrap", False),
        ("<built-in method linear of type object at 0x7f>", False),
        ("nn.Module: Linear_0", False),
        ("logging/__init__.py(1): info", False),
    ],
)
def test_frames_of_the_program_are_told_from_libraries(frame: str, ours: bool) -> None:
    """By the file, as Kineto shortens it."""
    assert is_user(frame) is ours


def test_innermost_frames_do_not_overlap() -> None:
    """A caller has what its callees leave."""
    line = innermost([(0.0, 10.0, "a"), (2.0, 4.0, "b"), (4.0, 6.0, "c"), (12.0, 13.0, "d")], lambda _: True)

    assert line == [(0.0, 2.0, "a"), (2.0, 4.0, "b"), (4.0, 6.0, "c"), (6.0, 10.0, "a"), (12.0, 13.0, "d")]


def test_real_step_of_two_ranks_under_ddp() -> None:
    """A step of a 55 M decoder on an H200, rank 0 of 2 (torch 2.11, on-demand trace, trimmed): as its viewer shows it."""
    trace = read(REAL, 599, 0)
    lines = "\n".join(summary([trace]))

    assert trace.step_seconds == pytest.approx(0.0212, abs=0.0005)
    assert trace.gpu_busy_share == pytest.approx(0.57, abs=0.01)
    assert next(iter(trace.families)) == "gemm"
    assert trace.kernels[0].name == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert trace.kernels[0].part == "backward"
    assert trace.exposed_communication_share == pytest.approx(0.03, abs=0.01)
    assert sum(trace.idle.values()) == pytest.approx(1 - (trace.gpu_busy_share or 0), abs=1e-3)
    assert trace.math_attention_calls == 0
    assert "the GPU is busy 57% of the time" in lines


def test_real_sick_step_is_seen_for_what_it_is() -> None:
    """A decoder in FP32 that asks for SDPA's math kernel and reads its loss each step (one H200, torch 2.11, with stacks)."""
    trace = read(SICK, 809)
    lines = "\n".join(summary([trace]))

    assert trace.full_precision_gemm_share is not None
    assert trace.full_precision_gemm_share > 0.7
    assert trace.math_attention_calls > 0
    assert trace.math_attention_share is not None
    assert 0.05 < trace.math_attention_share < 0.6
    assert trace.syncs[0].where == "train.py(32): train"
    assert trace.stacks
    assert "matrix products in full FP32" in lines
    assert "the host waits for the card at train.py(32): train" in lines


GOOD = [window(0, 100), span("cpu_op", "aten::mm {lambda()#1} \n  }", 1, 5), span("cpu_op", 'a "quoted" name', 6, 7)]


def test_events_come_in_order_with_odd_names_whole(tmp_path: Path) -> None:
    """A kernel's name may hold braces, quotes and escapes."""
    names = [one.name for one in events(write(tmp_path / "t.gz", GOOD))]

    assert names == ["PyTorch Profiler (0)", "aten::mm {lambda()#1} \n  }", 'a "quoted" name']


def test_plain_file_is_read_as_well(tmp_path: Path) -> None:
    """As torch.profiler writes it before it is packed."""
    path = tmp_path / "t.json"
    path.write_bytes(text(GOOD))

    assert len(list(events(path))) == 3


def test_truncated_trace_is_said_to_be_cut_off(tmp_path: Path) -> None:
    """Plain or packed, wherever it is cut."""
    plain, packed = text(GOOD), gzip.compress(text(GOOD))
    for name, content in (("t.json", plain[: len(plain) // 2]), ("t.gz", packed[: len(packed) // 2])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceUnreadable, match=r"cut off|no traceEvents"):
            list(events(tmp_path / name))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a trace",
        b'{"traceEvents": 5}',
        b'{"traceEvents": [\n  {\n "ph": 5\n  }\n]}',
        b'{"traceEvents": [' + b"[" * 100_000,
        b'{"traceEvents": [\n  {' + b'"a":' * 50_000 + b"\n  }]}",
        b'{"traceEvents": [{"ph": "X", "name": "' + b"x" * (3 * 2**20) + b'"}]}',
        b"\x1f\x8b garbage",
    ],
    ids=["empty", "text", "number", "wrong type", "deep", "torn", "endless event", "no gzip"],
)
def test_hostile_content_is_refused(tmp_path: Path, content: bytes) -> None:
    """With a sentence that names the file."""
    path = tmp_path / "t.json"
    path.write_bytes(content)

    with pytest.raises(TraceUnreadable, match=r"t\.json"):
        list(events(path))


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever follows the beginning of a good file, there are events or a sentence."""
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(text(GOOD)[:200] + content)
    try:
        list(events(path))
    except TraceUnreadable:
        pass


def test_bomb_is_stopped(tmp_path: Path) -> None:
    """A small file that unpacks to a gigabyte of nothing ends after a megabyte of it."""
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(text(GOOD)[:-60] + b" " * 2**26))

    with pytest.raises(TraceUnreadable, match="an event of more than"):
        list(events(path))


def test_reading_has_a_deadline(tmp_path: Path) -> None:
    """However large the file is."""
    now = iter(range(100))

    with pytest.raises(TraceUnreadable, match="longer than 0 s"):
        list(events(write(tmp_path / "t.gz", GOOD), 0.0, lambda: float(next(now))))


def test_too_many_events_are_refused(tmp_path: Path) -> None:
    """They would not fit into memory."""
    with pytest.raises(TraceUnreadable, match="more than 2 events"):
        list(events(write(tmp_path / "t.gz", GOOD), most_events=2))


def test_pipe_or_link_is_not_opened(tmp_path: Path) -> None:
    """A FIFO would hold us; a link may lead anywhere."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(write(tmp_path / "t.gz", GOOD))

    for name in ("fifo", "link", "absent"):
        with pytest.raises(TraceUnreadable):
            list(events(tmp_path / name))


def test_numbers_that_json_allows_are_read(tmp_path: Path) -> None:
    """Kineto writes times as decimal fractions; other fields may hold anything."""
    event = span("kernel", "k", 1.25, 2.5) | {"args": {"correlation": "7", "other": [{"deep": None}]}}
    (path := tmp_path / "t.json").write_bytes(text([json.loads(json.dumps(event))]))
    (read,) = events(path)

    assert (read.ts, read.dur) == (1.25, 1.25)


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_a_trace_that_was_written_anew_is_read(tmp_path: Path, indent: int | str | None) -> None:
    """By Python's json: on one line or indented, with other keys first and events cut by chunks anywhere."""
    many = [*GOOD, *(span("cpu_op", f"op {number} é", number, number + 1) for number in range(8000))]
    path = tmp_path / "t.json"
    whole = {"metadata": {"list": ["["]}, "schemaVersion": 1, "traceEvents": many, "traceName": "x"}
    path.write_text(json.dumps(whole, indent=indent))

    assert [one.name for one in events(path)] == [one["name"] for one in many]


def test_a_trace_that_was_written_anew_and_cut_is_refused(tmp_path: Path) -> None:
    """After the events that were whole."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": GOOD})[:-60])

    with pytest.raises(TraceUnreadable, match="cut off"):
        list(events(path))


def test_an_execution_trace_is_refused_by_its_name(tmp_path: Path) -> None:
    """It tells which operators ran, and not when."""
    path = tmp_path / "et.json"
    path.write_text(
        json.dumps({"schema": "1.0.1", "pid": 7, "time": "2026-11-29", "start_ts": 1, "nodes": [{"id": 1}]})
    )

    with pytest.raises(TraceUnreadable, match="execution trace"):
        list(events(path))
