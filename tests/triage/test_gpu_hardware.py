"""How close a job is to its hardware: peaks from data sheets, rates from the card's units, FLOPs of the model by its own steps."""

from typing import Any

import pytest
from msgspec import structs

from perfwatch.errors import EXIT_CODES
from perfwatch.gate import gated
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import CardFigures, Efficiency, ModelFigures, Verdict
from perfwatch_probes.readings import Gpu, GpuActivity, GpuBinding, Process, Stack, Steps, Thread
from tests.cards import LOADS, UUID, bound, h200, load, recorded, under
from tests.sessions import session, verdict
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID

PARAMETERS, TOKENS = 55_504_896, 8192  # of the recorded training: 87.5 steps/s by its own count, 239 TFLOP/s by 6 N T
STEPS_PER_SECOND = 87.5
STEADY = (1 / STEPS_PER_SECOND,) * 64
BEGAN, NOW = 45.5, 56.0  # of the recorded training, which runs on the first card alone


def computes(history: History, pid: int, rank: int | None = None, world_size: int | None = None) -> None:
    """A process whose training thread was seen in all parts of a step for the last ten seconds."""
    history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True, rank=rank, world_size=world_size))  # fmt: skip
    for number in range(21):
        at = history.at - 10.0 + number / 2
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=at, run_seconds=at))
        frames = (FORWARD, BACKWARD, OPTIMIZER)[number % 3]
        history.add(at, Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.4, owns_gil=False))


def judged(history: History, *pids: int, **conditions: float) -> Verdict:
    """What is said now of the job of these processes."""
    return judge(Case(history, session(mode="attach", root_pids=pids or (PID,), conditions=conditions)))


def figures(history: History, **conditions: float) -> Efficiency:
    """The efficiency in the verdict on a single process that trains on the first card."""
    computes(history, PID)
    history.add(0.0, bound(PID, UUID))
    found = judged(history, **conditions).efficiency
    assert found is not None
    return found


def loaded(card: Gpu, **sample: Any) -> History:
    """Twelve seconds of a card that multiplies matrices."""
    history = History()
    under(history, "bf16_matmul", 0.0, 12.0, card.uuid, **sample)
    history.add(0.0, card)
    return history


def on(card: Gpu) -> tuple[CardFigures, ModelFigures]:
    """The figures of a card that multiplies matrices, and those of a small model on it."""
    history = loaded(card)
    history.add(12.0, Steps(pid=PID, tid=PID, count=64, step_ago_seconds=0.0, interval_seconds=STEADY))
    found = figures(history, params=1e6, tokens_per_step=1e3)
    assert found.model is not None
    return found.cards[0], found.model


# name, compute capability, multiprocessors, boost clock in MHz, dense 16-bit TFLOP/s: from NVIDIA's data sheets.
SHEETS = [
    ("Tesla V100-SXM2-16GB", (7, 0), 80, 1530, 125.0),
    ("Tesla T4", (7, 5), 40, 1590, 65.0),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, 312.0),
    ("NVIDIA A10", (8, 6), 72, 1695, 125.0),
    ("NVIDIA TITAN RTX", (7, 5), 72, 1770, 130.5),
    ("Tesla V100S-PCIE-32GB", (7, 0), 80, 1597, 130.0),
    ("NVIDIA L40S", (8, 9), 142, 2520, 362.0),
    ("NVIDIA L40", (8, 9), 142, 2490, 181.05),
    ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830, 989.0),
    ("NVIDIA B200", (10, 0), 148, 1850, 2250.0),
]


@pytest.mark.parametrize(("name", "capability", "sms", "clock", "tflops"), SHEETS)
def test_rate_times_clock_is_what_the_data_sheet_says(
    name: str, capability: tuple[int, int], sms: int, clock: int, tflops: float
) -> None:
    """Two independent sources for every generation: the card's peak is computed, the model's is read from the sheet."""
    card, model = on(Gpu(uuid=UUID, index=0, name=name, compute_capability=capability, sms=sms, sm_clock_max_mhz=clock))

    assert card.unknown == ""
    assert card.peak_tflops == pytest.approx(tflops, rel=0.02)
    assert model.peak_tflops == pytest.approx(tflops, abs=0.06)


def test_a_consumer_card_accumulates_in_fp32_at_half_the_rate() -> None:
    """165 TFLOP/s for a GeForce RTX 4090, where a workstation card of the same chip does twice as much."""
    card, _ = on(
        Gpu(
            uuid=UUID,
            index=0,
            name="NVIDIA GeForce RTX 4090",
            compute_capability=(8, 9),
            sms=128,
            sm_clock_max_mhz=2520,
        )
    )

    assert card.peak_tflops == pytest.approx(165.0, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H800 PCIe", 756.0),
        ("NVIDIA H100 80GB HBM2e", 756.0),
        ("NVIDIA H800", 989.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA GH200 480GB", 989.0),
        ("NVIDIA B100", 1750.0),
        ("NVIDIA B300 SXM6 AC", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GB300", 2500.0),
        ("NVIDIA L40G", None),
        ("NVIDIA GB10", None),
    ],
)
def test_a_product_has_the_peak_of_its_own_data_sheet(name: str, tflops: float | None) -> None:
    """A card in a slot does less than a module of the same name; what no sheet states is unknown."""
    _, model = on(Gpu(uuid=UUID, index=0, name=name))

    assert model.peak_tflops == tflops
    assert (model.mfu is None) is (tflops is None)


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce GTX 1660", "NVIDIA T1000 8GB", "NVIDIA T400 4GB", "NVIDIA GeForce MX450"]
)
def test_turing_without_tensor_cores_has_no_tensor_peak(name: str) -> None:
    """Its compute capability is that of a T4."""
    card, model = on(Gpu(uuid=UUID, index=0, name=name, compute_capability=(7, 5), sms=22, sm_clock_max_mhz=1785))

    assert card.peak_tflops is None
    assert card.tensor_tflops is None
    assert "no tensor cores" in card.unknown
    assert model.peak_tflops is None


@pytest.mark.parametrize(
    ("bits", "clock", "gigabytes"),
    [(6144, 3201, 4917), (5120, 1215, 1555), (256, 5001, 320), (384, 9001, 864), (4096, 877, 898)],
)
def test_bus_times_clock_is_the_memory_of_the_data_sheet(bits: int, clock: int, gigabytes: int) -> None:
    """H200, A100 40 GB, T4, L40S and V100."""
    card, _ = on(Gpu(uuid=UUID, index=0, name="a card", memory_bus_bits=bits, memory_clock_max_mhz=clock))

    assert card.dram_peak_gb_per_second == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (Gpu(uuid=UUID, index=0, name="NVIDIA Future", compute_capability=(99, 0), sms=300), "not in the table"),
        (Gpu(uuid=UUID, index=0, name="NVIDIA A100", compute_capability=(8, 0)), "how many multiprocessors"),
        (Gpu(uuid=UUID, index=0, name="NVIDIA A100", sms=108), "compute capability"),
    ],
)
def test_of_an_unknown_card_nothing_is_assumed(card: Gpu, why: str) -> None:
    """A wrong peak would make every share of it wrong: the verdict says why there is none, and what is known all the same."""
    history = loaded(structs.replace(card, sm_clock_max_mhz=2000))
    computes(history, PID)
    history.add(0.0, bound(PID, UUID))
    verdict = judged(history)
    assert verdict.efficiency is not None
    (found,) = verdict.efficiency.cards

    assert (found.peak_tflops, found.tensor_tflops, found.hfu_at_boost) == (None, None, None)
    assert found.dram_share is not None
    assert found.dram_share.p50 == pytest.approx(LOADS["bf16_matmul"][4] / 100)
    assert why in found.unknown
    assert why in verdict.summary
    assert [one.observed for one in verdict.evidence if one.witness == "hardware" and why in one.observed]


@pytest.mark.parametrize(
    ("name", "capability", "sheet"),
    [("NVIDIA H20", (9, 0), 148.0), ("NVIDIA L20", (8, 9), 119.5), ("NVIDIA A10G", (8, 6), 70.0)],
)
def test_a_product_that_is_held_back_is_not_taken_for_its_architecture(
    name: str, capability: tuple[int, int], sheet: float
) -> None:
    """What it does in a clock is not known; what its maker states is."""
    card, model = on(Gpu(uuid=UUID, index=0, name=name, compute_capability=capability, sms=78, sm_clock_max_mhz=1980))

    assert card.peak_tflops is None
    assert "not known" in card.unknown
    assert model.peak_tflops == sheet


def test_a_known_card_whose_clock_is_not_read_has_a_peak_and_no_rate() -> None:
    """There is nothing to say of it being unknown."""
    (card,) = figures(loaded(h200(), sm_clock_mhz=None)).cards

    assert card.unknown == ""
    assert card.peak_tflops == pytest.approx(1070.5, rel=0.001)
    assert card.tensor_tflops is None


# Share of the time with a kernel resident, clock in MHz, and what a loop that counts its own FLOPs had of told ones: H100, H200.
YIELDS = [
    (0.95, 1388, 1.006),
    (0.96, 1436, 0.964),
    (0.95, 1485, 0.912),
    (0.92, 1800, 0.91),
    (0.26, 1980, 0.954),
    (0.08, 1980, 1.0),
]
AMPERE = Gpu(uuid=UUID, index=0, name="A100", compute_capability=(8, 0), sms=108, sm_clock_max_mhz=1410)


@pytest.mark.parametrize(("busy", "clock", "share"), YIELDS)
def test_a_hopper_card_brings_what_loops_counted_by_its_load_and_its_clock(
    busy: float, clock: float, share: float
) -> None:
    """Within 5 %; of an older card the active cycles of its tensor cores are taken as they are."""

    def counted(card: Gpu) -> float:
        history = History(at=12.0)
        history.add(0.0, card)
        for number in range(60):
            sample, units = load("bf16_matmul", sm_clock_mhz=clock)
            assert isinstance(units, GpuActivity)
            history.add(number / 5, sample)
            history.add(number / 5, structs.replace(units, graphics=busy, tensor=0.5 * busy))
        found = figures(history).cards[0].hfu_at_clock
        assert found is not None
        return found.p50 / (0.5 * busy)

    assert counted(h200()) == pytest.approx(share, rel=0.05)
    assert counted(AMPERE) == pytest.approx(1.0)


def test_a_matrix_product_on_a_power_capped_card_is_told_at_both_clocks() -> None:
    """Its tensor cores are busy for 94 % of the cycles, which bring 87 % of what it can do at 1,470 MHz, 65 % of that at 1,980."""
    (card,) = figures(loaded(h200())).cards

    assert card.tensor_tflops is not None
    assert card.hfu_at_boost is not None
    assert card.hfu_at_clock is not None
    assert card.tensor_tflops.p50 == pytest.approx(691, rel=0.01)
    assert card.hfu_at_clock.p50 == pytest.approx(0.871, abs=0.005)
    assert card.hfu_at_boost.p50 == pytest.approx(0.871 * 1470 / 1980, rel=0.01)


def training() -> History:
    """The recorded training alone: on the first card, for its last ten seconds."""
    history = History(at=NOW)
    for at, reading in recorded():
        if at <= NOW and (at > BEGAN or isinstance(reading, Gpu)):
            history.add(at, reading)
    return history


def stepping(history: History, *intervals: float) -> None:
    """What the agent counted until now."""
    steps = Steps(pid=PID, tid=PID, count=len(intervals), step_ago_seconds=0.0, interval_seconds=intervals)
    history.add(history.at, steps)


def model(history: History, **more: float) -> ModelFigures:
    """The figures of the recorded training's model."""
    found = figures(history, params=PARAMETERS, tokens_per_step=TOKENS, **more).model
    assert found is not None
    return found


def test_the_achieved_rate_is_what_the_training_counted_itself() -> None:
    """239 TFLOP/s by 6 N T. Of six cards the one whose busy cycles brought all they can: it is told 6 % low."""
    card = figures(training()).cards[0]

    assert card.tensor_tflops is not None
    assert card.tensor_tflops.p50 == pytest.approx(239.0, rel=0.08)


def test_model_flops_utilisation_is_told_against_the_data_sheet() -> None:
    """239 of 989 TFLOP/s; attention counts when its shape is given: 12 x layers x hidden x sequence more per token."""
    plain, whole = training(), training()
    stepping(plain, *STEADY)
    stepping(whole, *STEADY)
    mfu = model(plain).mfu
    with_attention = model(whole, layers=6, hidden=768, sequence=512).mfu

    assert mfu is not None
    assert with_attention is not None
    assert mfu.p50 == pytest.approx(239.0 / 989.0, rel=0.01)
    assert with_attention.p50 == pytest.approx(mfu.p50 * (1 + 12 * 6 * 768 * 512 / (6 * PARAMETERS)), rel=0.01)


def test_model_flops_utilisation_is_part_of_the_summary_of_a_job_that_its_card_holds_back() -> None:
    """With the peak that it is held against."""
    history = loaded(h200())
    stepping(history, *[0.1] * 64)
    computes(history, PID)
    history.add(0.0, bound(PID, UUID))
    verdict = judged(history, params=PARAMETERS, tokens_per_step=0.1 * STEPS_PER_SECOND * TOKENS)

    assert verdict.cause == "gpu_bound"
    assert "MFU 24.1% of 989 TFLOP/s x 1 (p50; p95 24.1%" in verdict.summary


def test_the_first_steps_are_left_out_and_the_slow_ones_show_in_the_tail() -> None:
    """Compilation in the first step would spoil a mean."""
    history = training()
    stepping(history, *[5.0] * 4, *[0.01] * 50, 0.1, 0.1, 0.1)
    found = model(history)

    assert found.step_seconds is not None
    assert found.step_seconds.p50 == pytest.approx(0.01)
    assert found.step_seconds.p99 == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("pattern", "seconds"),
    [
        ((0.01, 0.01, 0.01, 0.37), 0.1),  # every fourth step waits for data
        ((0.002,) * 9 + (0.982,), 0.1),  # the host is ahead of the card until it reads a loss
    ],
)
def test_steps_that_are_not_alike_bring_as_many_tokens_as_are_counted(
    pattern: tuple[float, ...], seconds: float
) -> None:
    """The middle interval would tell ten times as many, or fifty."""
    history = training()
    for ago in range(4, -1, -1):
        intervals = pattern * (60 // len(pattern))
        steps = Steps(pid=PID, tid=PID, count=60 * (20 - ago), step_ago_seconds=0.0, interval_seconds=intervals)
        history.add(NOW - ago * 60 * seconds, steps)
    found = model(history)

    assert found.tokens_per_second is not None
    assert found.tokens_per_second.p50 == pytest.approx(TOKENS / seconds, rel=0.15)
    assert found.tokens_per_second.p99 == pytest.approx(TOKENS / seconds, rel=0.3)


@pytest.mark.parametrize(("each", "seconds"), [(1.0, 0.1), (2.0, 0.2), (10.0, 1.0), (None, None)])
def test_steps_of_optimizers_that_take_turns_are_one_of_the_model(each: float | None, seconds: float | None) -> None:
    """Ten counts a second: of two optimizers five steps, of ten one; unknown where they are too many to be told apart."""
    history = training()
    for ago in range(4, -1, -1):
        steps = Steps(pid=PID, tid=PID, count=60 * (20 - ago), step_ago_seconds=0.0, interval_seconds=(0.1,) * 60,
                      steps_each_turn=each)  # fmt: skip
        history.add(NOW - ago * 6.0, steps)
    found = model(history)

    assert (found.step_seconds and found.step_seconds.p50) == (seconds and pytest.approx(seconds))
    assert (found.tokens_per_second and found.tokens_per_second.p50) == (seconds and pytest.approx(TOKENS / seconds))
    assert ("take turns" in found.missing) is (each is None)


PART = structs.replace(h200("MIG-1"), name="NVIDIA H200 MIG 1g.18gb", sms=16, sm_clock_max_mhz=None, parent_uuid=UUID)


def stepped(*bindings: GpuBinding, world_size: int | None = None, factor: float = 1.0) -> ModelFigures:
    """The recorded training, whose processes use these cards of eight or of a part of the first; the tokens times a factor."""
    history = training()
    stepping(history, *STEADY)
    for index in range(2, 8):
        history.add(0.0, h200(f"GPU-{index}", index))
    history.add(0.0, PART)
    for rank, one in enumerate(bindings):
        computes(history, one.pid, rank, world_size)
        history.add(history.at, one)
    pids = [one.pid for one in bindings]
    found = judged(history, *pids, params=PARAMETERS, tokens_per_step=TOKENS * factor).efficiency
    assert found is not None
    assert found.model is not None
    return found.model


@pytest.mark.parametrize("uuids", [("MIG-1",), (UUID, "MIG-1")])
def test_who_uses_a_part_of_a_card_is_held_against_the_multiprocessors_of_that_part(uuids: tuple[str, ...]) -> None:
    """A slice of an H200 is no H200: 16 of 132 at the clock of the whole, also where the whole is listed beside it."""
    found = stepped(bound(PID, *uuids), factor=0.1)

    assert found.cards == 1
    assert found.peak_tflops == pytest.approx(16 * 4096 * 1980e6 / 1e12, rel=0.01)


def test_where_nobody_knows_which_cards_the_job_uses_there_is_no_mfu() -> None:
    """Eight are in sight: a single process may use one of them, or all."""
    seen = tuple(f"GPU-{index}" for index in range(8))
    found = stepped(GpuBinding(pid=PID, uuids=(), visible=seen, how="", cuda=None))

    assert found.mfu is None
    assert "it is not known which GPUs the job uses (8 in sight)" in found.missing


@pytest.mark.parametrize(
    ("bindings", "world_size", "cards"),
    [
        ((bound(PID, "GPU-0"), bound(PID + 1, "GPU-0")), 2, 1),
        ((bound(PID, "GPU-0"), bound(PID + 1, "GPU-1")), 2, 2),
        ((bound(PID, "GPU-0"), bound(PID + 1, "GPU-0")), 8, 4),  # the other ranks are on other machines
        ((bound(PID, "GPU-0", how="local_rank"), bound(PID + 1, "GPU-1", how="local_rank")), 16, 16),
    ],
)
def test_cards_are_counted_and_not_ranks(bindings: tuple[GpuBinding, ...], world_size: int, cards: int) -> None:
    """Two ranks on one card have that one card's arithmetic; other machines are taken for the same as this one."""
    found = stepped(*bindings, world_size=world_size)

    assert found.cards == cards
    assert found.mfu is not None
    assert found.mfu.p50 == pytest.approx(239.0 / 989.0 / cards, rel=0.01)


def test_more_than_the_cards_can_do_is_told_as_impossible_and_passes_no_gate() -> None:
    """Ten times the tokens: 2.4 times what the card can do at most; the gate knows nothing then."""
    found = stepped(bound(PID, "GPU-0"), factor=10.0)
    code, words = gated(verdict(state="healthy", cause="gpu_bound", efficiency=Efficiency(model=found)), 35.0)

    assert found.mfu is None
    assert "241% of 989 TFLOP/s x 1 cannot be: check --params and --tokens-per-step" in found.missing
    assert code == EXIT_CODES["inconclusive"]
    assert "cannot be" in words


def test_without_a_step_clock_there_is_no_mfu_and_that_is_said() -> None:
    """Attached to a job that was not started by run; of a model that nobody described nothing is said at all."""
    assert model(training()).mfu is None
    assert "perfwatch run" in model(training()).missing
    assert figures(training()).model is None
