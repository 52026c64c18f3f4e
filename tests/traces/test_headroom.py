"""Where a step's time goes and what would bring most: on small traces, and on some of an H200."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfwatch.headroom.advice import Headroom, advise, middle
from perfwatch.headroom.gain import Budget, Saved
from perfwatch.headroom.levers import LEVERS
from perfwatch.headroom.step import read
from tests.command_line import perfwatch
from tests.traces.kineto_text import span, write

H200 = {
    "id": 0,
    "name": "NVIDIA H200",
    "totalGlobalMem": 150109880320,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
WRONG: list[object] = [None, 3, "x", [None], [[None]], [["a", 1]], {"a": 1}, [True], [["²", "1"]]]
WRONG += [[[2**80, 2**80], [1]], [[2**62] * 30] * 3]
OPERATIONS = ("mm", "cudnn_convolution", "convolution_backward", "_embedding_bag_dense_backward")
SECONDS = st.floats(0.0, 10.0)


def kernel(name: str, begin: float, end: float, number: int) -> list[dict[str, Any]]:
    """A kernel, and the call that launched it for the operation of that number."""
    named: dict[str, Any] = {"External id": number}
    return [
        span("cuda_runtime", "cudaLaunchKernel", begin - 9, begin - 7, correlation=number, **named),
        span("kernel", name, begin, end, 7, correlation=number, grid=[264, 1, 1], **named),
    ]


def operation(
    name: str, begin: float, end: float, number: int, sizes: list[list[int]], kind: str = "float"
) -> dict[str, Any]:
    """An operation on tensors of one type."""
    named: dict[str, Any] = {"External id": number, "Input Dims": sizes, "Input type": [kind] * len(sizes)}
    return span("cpu_op", name, begin, end, **named)


def product(
    begin: float, end: float, number: int, kind: str = "float", name: str = "ampere_sgemm_128x64_nn"
) -> list[dict[str, Any]]:
    """A matrix product."""
    return [
        operation("aten::mm", begin - 10, begin - 6, number, [[4096, 1024], [1024, 4096]], kind),
        *kernel(name, begin, end, number),
    ]


def step(begin: float, end: float) -> dict[str, Any]:
    """An optimizer's step."""
    return span("user_annotation", "Optimizer.step#AdamW.step", begin, end)


def told(
    folder: Path, *events: Any, card: dict[str, Any] | None = H200, usual_seconds: float | None = None
) -> Headroom:
    """What is told of a trace."""
    flat: list[Any] = list(events)
    while any(isinstance(one, list) for one in flat):
        flat = [one for part in flat for one in (part if isinstance(part, list) else [part])]
    path = write(folder / "t.json.gz", flat, [card] if card else [])
    return advise(read(path, usual_seconds), path)


def names(headroom: Headroom) -> list[str]:
    """Its levers."""
    return [one.lever for one in headroom.levers]


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_no_lever_brings_more_than_the_rest_of_the_step_leaves(
    card: float, host: float, rest: float, a: float, b: float
) -> None:
    """Work taken from the card brings nothing beyond the point at which the host is too slow, and the other way round."""
    budget = Budget(max(card, host) + rest + 1.0, card, host)
    times = budget.times(Saved(card=a))

    assert 1.0 - 1e-9 <= times <= budget.seconds / max(host, 0.02 * budget.seconds) + 1e-9
    assert budget.times(Saved(card=a, host=b)) >= times - 1e-9


@given(
    st.lists(
        st.tuples(
            st.integers(0, 900), st.integers(1, 90), st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"])
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_shares_of_a_step_sum_to_one(works: list[tuple[int, int, str]]) -> None:
    """Whatever overlaps: each moment is counted once."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = told(
            Path(folder),
            [kernel(name, 20 + at, 20 + at + size, number) for number, (at, size, name) in enumerate(works, 1)],
        )

    assert sum(one.share for one in found.shares) == pytest.approx(1.0, abs=1e-4)


def test_the_gaps_are_what_the_usual_step_has_beyond_the_work_of_the_card(tmp_path: Path) -> None:
    """The profiler slows the host and not the card."""
    events = [product(100, 500, 1), product(900, 1000, 2), step(1000, 1010)]
    traced, usual = told(tmp_path, *events), told(tmp_path, *events, usual_seconds=0.0006)

    assert traced.step_seconds == pytest.approx(0.0009)
    assert usual.step_seconds == pytest.approx(0.0006)
    assert sum(one.seconds for one in usual.shares if one.family) == pytest.approx(0.0005)


def test_products_in_fp32_speak_for_bf16_first_and_for_tf32_as_the_other_way(tmp_path: Path) -> None:
    """They exclude each other, and both say so."""
    found = told(tmp_path, product(100, 900, 1), step(901, 905))

    assert names(found)[:2] == ["mixed_precision", "tf32"]
    assert found.levers[0].excludes == ("tf32",)
    assert found.levers[0].times[0] > found.levers[1].times[0] > 1.3


def test_a_lever_that_is_on_already_is_not_proposed(tmp_path: Path) -> None:
    """Products in 16 bits need no mixed precision."""
    found = told(
        tmp_path, product(100, 900, 1, "c10::BFloat16", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN"), step(901, 905)
    )

    assert "mixed_precision" not in names(found)
    assert found.roofs[0].type == "bfloat16"


def test_an_unknown_card_lowers_the_claim(tmp_path: Path) -> None:
    """Half of the gain, and the reason is told."""
    known, unknown = (told(tmp_path, product(100, 900, 1), step(901, 905), card=card) for card in (H200, None))

    assert unknown.levers[0].lever == known.levers[0].lever
    assert unknown.levers[0].times[1] < 0.6 * known.levers[0].times[1]
    assert any("the card" in text for text in unknown.missing)


def test_without_shapes_attention_is_not_judged_and_that_is_said(tmp_path: Path) -> None:
    """Nothing is guessed."""
    found = told(tmp_path, kernel("softmax_warp_forward", 100, 900, 1), step(901, 905))

    assert "flash_attention" not in names(found)
    assert any(text.startswith("shapes") for text in found.missing)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_arguments_of_another_type_than_torch_writes_are_absent(tmp_path: Path, wrong: object) -> None:
    """The job wrote the trace."""
    given: dict[str, Any] = {"External id": 1}
    for name in ("Input Dims", "Input Strides", "Input type", "Concrete Inputs", "Sequence number", "Fwd thread id"):
        given[name] = wrong
    hostile = [span("cpu_op", f"aten::{name}", 10, 90, **given) for name in OPERATIONS]

    assert told(tmp_path, hostile, kernel("gemm", 100, 900, 1), step(901, 905)).shares


def test_a_negative_duration_is_none_and_the_shares_still_sum_to_one(tmp_path: Path) -> None:
    """Kineto writes some where two clocks drift apart."""
    found = told(tmp_path, product(100, 300, 1), product(600, 900, 2), kernel("gemm", 500, 200, 3), step(901, 905))

    assert sum(one.share for one in found.shares) == pytest.approx(1.0, abs=1e-4)
    assert found.step_seconds == pytest.approx(0.0008)


def test_a_rate_beyond_the_card_is_not_told(tmp_path: Path) -> None:
    """The shapes are not of what ran."""
    sizes = [[2**30, 2**30]] * 2

    assert told(tmp_path, operation("aten::mm", 10, 20, 1, sizes), kernel("sgemm", 100, 900, 1)).roofs == ()
    assert told(tmp_path, product(100, 900, 1)).roofs


def test_an_event_of_a_thousand_years_is_refused_and_a_link_is_named(tmp_path: Path) -> None:
    """In one sentence, with what to do."""
    endless = write(tmp_path / "a.json.gz", [*product(100, 900, 1), span("kernel", "gemm", 900, 1e300)], [H200])
    (link := tmp_path / "b.json").symlink_to(endless)
    refused, linked = perfwatch("headroom", str(endless)), perfwatch("headroom", str(link))

    assert "takes 1e+300 us" in refused.stderr
    assert f"is a symbolic link\n  name the file itself: {endless}" in linked.stderr


@pytest.mark.parametrize(("between", "steps"), [(True, 2), (False, 1)])
def test_two_optimizers_of_one_kind_after_one_backward_pass_are_one_step(
    tmp_path: Path, between: bool, steps: int
) -> None:
    """Tables and the rest of a model often have one each."""
    passes = [span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at, at + 10) for at in (910, 925)]
    found = told(tmp_path, product(100, 900, 1), passes[: 1 + between], update("Adam", 921), update("Adam", 940))

    assert found.steps == steps


def test_each_row_says_what_it_costs_and_where_its_figure_is_from() -> None:
    """And names only rows that exist."""
    known = {one.name for one in LEVERS}

    assert len(known) == len(LEVERS)
    assert all(one.cost and one.source and one.change for one in LEVERS)
    assert {name for one in LEVERS for name in one.excludes} <= known


def test_two_levers_that_exclude_each_other_both_say_so() -> None:
    """Whichever of them is read first."""
    pairs = {(one.name, other) for one in LEVERS for other in one.excludes}

    assert pairs == {(other, one) for one, other in pairs}


BF16, TENSOR_CORES = "c10::BFloat16", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN"


def fast(begin: float, end: float, number: int) -> list[dict[str, Any]]:
    """A product that nothing makes faster."""
    return product(begin, end, number, BF16, TENSOR_CORES)


def driver_calls(*names: str) -> list[dict[str, Any]]:
    """Calls that ask the driver for memory while the card is idle."""
    return [span("cuda_driver", name, 210 + at * 40, 240 + at * 40) for at, name in enumerate(names)]


def attention(*, scores: list[list[int]], read: list[list[int]]) -> list[Any]:
    """A product, a softmax over 8 matrices of 512 x 128, a product; the card is in the softmax."""
    return [
        operation("aten::bmm", 10, 20, 1, scores, BF16),
        operation("aten::_softmax", 30, 40, 2, [[8, 512, 128], [], []], BF16),
        operation("aten::bmm", 50, 60, 3, read, BF16),
        kernel(TENSOR_CORES, 70, 100, 1),
        kernel("softmax_warp_forward", 100, 600, 2),
        kernel(TENSOR_CORES, 600, 700, 3),
    ]


def masked_attention(masked: float) -> list[Any]:
    """900 us of attention, so much of it under a dense mask."""
    sizes = [[8, 8, 512, 64]] * 3
    return [
        operation("aten::_scaled_dot_product_efficient_attention", 10, 20, 1, [*sizes, [8, 1, 512, 512]], BF16),
        operation("aten::_scaled_dot_product_flash_attention", 30, 40, 2, sizes, BF16),
        kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", 50, 50 + masked, 1),
        kernel("pytorch_flash::flash_fwd_kernel", 50 + masked, 950, 2),
    ]


def foreach_update(optimizer: str) -> list[Any]:
    """An optimizer that makes several passes over its state."""
    return [
        fast(100, 700, 1),
        operation("aten::_foreach_mul_", 702, 790, 2, []),
        [
            kernel("multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>", 720 + at * 9, 729 + at * 9, 2)
            for at in range(30)
        ],
        span("user_annotation", f"Optimizer.step#{optimizer}.step", 701, 1000),
    ]


def computed_in_backward(*called: str) -> list[Any]:
    """A node of the backward pass that records operations, these among them, and a product."""
    recorded: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 0}
    return [
        span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 10, 90, **{"External id": 1}),
        [span("cpu_op", f"aten::{name}", 20, 80, **recorded) for name in called],
        span("cpu_op", "aten::mm", 30, 70, **recorded, **{"External id": 2}),
        [span("cuda_runtime", "cudaLaunchKernel", 40, 42, correlation=2, **{"External id": 2})],
        [span("kernel", TENSOR_CORES, 100, 500, 7, correlation=2, **{"External id": 2})],
        fast(500, 900, 3),
    ]


def update(optimizer: str, begin: float) -> dict[str, Any]:
    """A step of an optimizer."""
    return span("user_annotation", f"Optimizer.step#{optimizer}.step", begin, begin + 10)


def two_passes(*between: Any, second: int) -> list[Any]:
    """Two forward and backward passes of small kernels; the second has so many operations, the first ten."""
    events: list[Any] = list(between)
    for begin, size in ((1000.0, 10), (2000.0, second), (3000.0, 10), (4000.0, second)):
        for at in range(size):
            number = int(begin) + at
            events.append(
                span(
                    "cpu_op",
                    "aten::mul",
                    begin + at * 20,
                    begin + at * 20 + 10,
                    **{"Sequence number": number, "External id": number},
                )
            )
            launch = begin + at * 20 + 5
            events.append(span("cuda_runtime", "cudaLaunchKernel", launch, launch + 2, correlation=number))
            events.append(
                span(
                    "kernel",
                    "vectorized",
                    launch + 9,
                    launch + 15,
                    7,
                    correlation=number,
                    grid=[8, 1, 1],
                    **{"External id": number},
                )
            )
        events.append(span("cpu_op", "autograd::engine::evaluate_function: MulBackward0", begin + 700, begin + 710))
    return events


def table_gradient(*, tied: bool) -> list[Any]:
    """The dense gradient of a table of 1,000,000 x 128 that a batch of 4,096 keys touches."""
    given: dict[str, Any] = {
        "External id": 1, "Input Dims": [[4096, 128], [4096], [], [], []],
        "Input type": ["float", "long int", "Scalar", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "1000000", "-1", "False"],
    }  # fmt: skip
    head = operation("aten::mm", 30, 40, 2, [[4096, 128], [128, 1000000]], BF16)
    return [
        span("cpu_op", "aten::embedding_dense_backward", 10, 20, **given),
        kernel("embedding_backward_kernel", 50, 1000, 1),
        *([head, kernel(TENSOR_CORES, 1000, 1200, 2)] if tied else [fast(1000, 1200, 2)]),
        kernel("multi_tensor_apply_kernel<FusedAdam>", 1300, 2500, 3),
        span("user_annotation", "Optimizer.step#Adam.step", 1280, 1300),
    ]


def summed_in_backward(*marks: str) -> list[Any]:
    """Three all-reduces in the backward pass with nothing beside them."""
    engine = [
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 400, 450, 131),
        span("cpu_op", "aten::mm", 401, 449, 131),
    ]
    sums = [
        [span("cuda_runtime", "cudaLaunchKernel", 410 + at, 411 + at, 131, correlation=90 + at),
         span("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 900 + at * 900, 1700 + at * 900, 9, correlation=90 + at)]
        for at in range(3)
    ]  # fmt: skip
    return [fast(100, 900, 1), engine, sums, [span("user_annotation", one, 50, 60) for one in marks], step(3600, 3605)]


def padded(mask: list[int], strides: list[int]) -> list[Any]:
    """Attention of 8 sequences under a mask, and a product of their perceptrons."""
    one = operation("aten::scaled_dot_product_attention", 10, 20, 1, [[8, 4, 512, 64]] * 3 + [mask], BF16)
    one["args"]["Input Strides"] = [[]] * 3 + [strides]
    return [one, kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", 50, 500, 1), fast(500, 950, 2)]


def generated(prompts: list[int]) -> list[Any]:
    """For each prompt (a batch of so many sequences of 16 tokens) ten tokens, the host at each all the time."""
    events: list[Any] = []
    for number, batch in enumerate(prompts):
        for at in range(11):
            begin, key = 1000.0 * number + 80 * at, 100 * number + at
            given = [[1000, 64], [batch, 1 if at else 16]]
            events += [
                operation("aten::embedding", begin, begin + 75, key, given),
                kernel("vectorized", begin + 70, begin + 74, key),
            ]
    return events


def awaited(copied: str) -> list[Any]:
    """An operation that copies so, and waits for it; then the card is empty until the next product."""
    number: dict[str, Any] = {"External id": 3}
    return [
        fast(100, 300, 1),
        operation("aten::copy_", 290, 420, 3, [[4]]),
        span("cuda_runtime", "cudaMemcpyAsync", 295, 300, correlation=3, **number),
        span("gpu_memcpy", copied, 310, 320, 7, correlation=3, **number),
        span("cuda_runtime", "cudaStreamSynchronize", 305, 415, correlation=4),
        fast(700, 900, 2),
        step(901, 905),
    ]


QK, PV = [[8, 512, 64], [8, 64, 128]], [[8, 512, 128], [8, 128, 64]]
LOOKALIKES = {
    "expandable segments are on": ("allocator", driver_calls("cudaMalloc", "cudaFree"), driver_calls("cuMemCreate", "cuMemMap")),
    "a router's softmax over experts": (
        "flash_attention",
        attention(scores=QK, read=PV),
        attention(scores=[[8, 512, 64], [8, 64, 64]], read=[[8, 64, 512], [8, 512, 64]]),
    ),
    "one short masked attention": ("attention_mask", masked_attention(600), masked_attention(5)),
    "RMSprop takes no fused=True": ("fused_optimizer", foreach_update("AdamW"), foreach_update("RMSprop")),
    "an optimizer of another library": ("fused_optimizer", foreach_update("Adam"), foreach_update("FusedAdam")),
    "a gradient penalty": ("checkpointing", computed_in_backward("linear"), computed_in_backward("t")),
    "two models, each with its optimizer": (
        "micro_batch",
        two_passes(step(2800, 2810), step(4800, 4810), second=10),
        two_passes(update("SGD", 1800), update("Adam", 2800), update("SGD", 3800), update("Adam", 4800), second=10),
    ),
    "a second loss": (
        "micro_batch",
        two_passes(step(2800, 2810), step(4800, 4810), second=10),
        two_passes(step(2800, 2810), step(4800, 4810), second=2),
    ),
    "the table is the output layer as well": ("sparse_gradients", table_gradient(tied=False), table_gradient(tied=True)),
    "a mask of documents that are packed": (
        "padding",
        padded([8, 1, 1, 512], [512, 512, 512, 1]),
        padded([8, 1, 512, 512], [2**18, 2**18, 512, 1]),
    ),
    "one mask for all sequences": ("padding", padded([8, 4, 512, 512], [512, 0, 0, 1]), padded([8, 4, 512, 512], [0, 0, 512, 1])),
    "prompts of several sizes": ("batched_generation", generated([1, 1, 1]), generated([1, 2, 4])),
    "a copy to the card waits and reads no value": (
        "synchronising_reads",
        awaited("Memcpy DtoH (Device -> Pageable)"),
        awaited("Memcpy HtoD (Pageable -> Device)"),
    ),
    "tensor parallelism": ("bucket_size", summed_in_backward("DistributedDataParallel.forward"), summed_in_backward()),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKALIKES)
def test_a_lever_is_proposed_for_its_own_evidence_and_not_for_what_looks_like_it(tmp_path: Path, case: str) -> None:
    """What resembles a lever that is missing, and is none."""
    lever, evidence, lookalike = LOOKALIKES[case]
    beside = [fast(100, 200, 801), fast(600, 700, 802)] if lever == "allocator" else []

    assert lever in names(told(tmp_path, evidence, beside))
    assert lever not in names(told(tmp_path, lookalike, beside))


def test_the_command_prints_one_object_or_one_sentence(tmp_path: Path) -> None:
    """Of a trace without a kernel it says why there is none, and what to do instead."""
    good = write(tmp_path / "a.json.gz", [*product(100, 900, 1), step(901, 905)], [H200])
    empty = write(tmp_path / "b.json.gz", [step(901, 905)])
    on_cpu = write(tmp_path / "c.json.gz", [span("cpu_op", "aten::mm", 100, 900), step(901, 905)])
    found = perfwatch("headroom", str(good), "--json")
    nothing, no_gpu = perfwatch("headroom", str(empty)), perfwatch("headroom", str(on_cpu))

    assert json.loads(found.stdout)["schema"] == "perfwatch.headroom/1"
    assert (nothing.returncode, no_gpu.returncode) == (2, 2)
    assert "no operation of torch ran in this window" in nothing.stderr
    assert "perfwatch capture torch" in nothing.stderr
    assert "1 operations on the CPU in this window and used no GPU" in no_gpu.stderr
    assert "perfwatch capture" not in no_gpu.stderr


# Three steps each on an H200 (torch 2.11), cut by scripts/trim_trace.py, with the usual step and what the levers brought: pairs of
# scripts/headroom.
@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recorded traces."""
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(Path(__file__).parent / "headroom_h200.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_an_encoder_in_fp32_is_told_what_bf16_really_brought(recorded: Path) -> None:
    """Measured 3.96 times as fast, 3.12 with TF32 alone, 1.04 with flash attention alone."""
    found = advise(read(recorded / "encoder_defaults.json", 0.0934), recorded)
    times = {one.lever: one.times for one in found.levers}

    assert [one.lever for one in found.levers] == ["mixed_precision", "tf32", "flash_attention"]
    assert times["mixed_precision"][0] <= 3.96 <= times["mixed_precision"][1]
    assert times["tf32"][0] <= 3.12 <= times["tf32"][1]
    assert times["flash_attention"][0] <= 1.05
    assert found.card == "NVIDIA H200"


def test_a_tuned_encoder_is_told_nothing_worth_five_percent(recorded: Path) -> None:
    """Compiled, in bf16, with a fused optimizer and flash attention."""
    found = advise(read(recorded / "encoder_tuned.json", 0.0571), recorded)

    assert [one.lever for one in found.levers if middle(one) > 1.05] == []
    assert sum(one.share for one in found.shares) == pytest.approx(1.0, abs=1e-4)


def test_a_compiled_network_in_tf32_is_told_what_bf16_really_brought(recorded: Path) -> None:
    """ResNet-50 under torch.compile, three values read at each step: measured 1.39 times as fast, and then the host is too slow."""
    found = advise(read(recorded / "resnet_compiled.json", 0.07832), recorded)
    first = found.levers[0]

    assert first.lever == "mixed_precision"
    assert first.times[0] <= 1.39 <= first.times[1]
