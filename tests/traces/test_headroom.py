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


def test_each_row_says_what_it_costs_and_where_its_figure_is_from() -> None:
    """And names only rows that exist."""
    known = {one.name for one in LEVERS}

    assert len(known) == len(LEVERS)
    assert all(one.cost and one.source and one.change for one in LEVERS)
    assert {name for one in LEVERS for name in one.excludes} <= known


def test_the_command_prints_one_object_or_one_sentence(tmp_path: Path) -> None:
    """Of a trace without a kernel it says what to do instead."""
    good = write(tmp_path / "a.json.gz", [*product(100, 900, 1), step(901, 905)], [H200])
    empty = write(tmp_path / "b.json.gz", [step(901, 905)])
    found, refused = perfwatch("headroom", str(good), "--json"), perfwatch("headroom", str(empty))

    assert json.loads(found.stdout)["schema"] == "perfwatch.headroom/1"
    assert refused.returncode == 2
    assert "no kernel ran in this trace" in refused.stderr
    assert "perfwatch capture torch" in refused.stderr


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
