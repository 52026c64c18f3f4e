"""How close a job is to its hardware, from the recorded series of a training that counted its own FLOPs."""

import pytest
from msgspec import structs

from perfwatch.errors import EXIT_CODES
from perfwatch.gate import gated
from perfwatch.triage.cards.efficiency import efficiency, headline, in_words, mfu_in_words
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.verdict import Efficiency, ModelFigures
from perfwatch_probes.readings import Gpu, GpuBinding, Process, Steps
from tests.cards import bound, h200, recorded, under
from tests.sessions import session, verdict

PID = 700
PARAMETERS, TOKENS = 55_504_896, 8192  # of the recorded training: 87.5 steps/s by its own count, 239 TFLOP/s by 6 N T
STEPS_PER_SECOND = 87.5


def trained(history: History, **conditions: float) -> Case:
    """A single process that trains on the first card."""
    history.add(
        0.0, Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True)
    )
    history.add(0.0, bound(PID, "GPU-0"))
    return Case(history, session(root_pids=(PID,), conditions=conditions))


def stepping(history: History, *intervals: float) -> None:
    """What the agent counted until now."""
    steps = Steps(pid=PID, tid=PID, count=len(intervals), step_ago_seconds=0.0, interval_seconds=intervals)
    history.add(history.at, steps)


def training() -> History:
    """The recorded training alone: from 45 s on, on the first card."""
    history = History(at=56.0)
    for at, reading in recorded():
        if at <= 56.0 and (at > 45.5 or isinstance(reading, Gpu)):
            history.add(at, reading)
    return history


def test_the_achieved_rate_is_what_the_training_counted_itself() -> None:
    """239 TFLOP/s by 6 N T. Of six cards the one whose busy cycles brought all they can: it is told 6 % low."""
    card = efficiency(trained(training())).cards[0]

    assert card.tensor_tflops is not None
    assert card.tensor_tflops.p50 == pytest.approx(239.0, rel=0.08)


def test_model_flops_utilisation_is_told_against_the_data_sheet() -> None:
    """239 of 989 TFLOP/s."""
    history = training()
    stepping(history, *[1 / STEPS_PER_SECOND] * 64)
    model = efficiency(trained(history, params=PARAMETERS, tokens_per_step=TOKENS)).model

    assert model is not None
    assert model.mfu is not None
    assert model.mfu.p50 == pytest.approx(239.0 / 989.0, rel=0.01)
    assert "MFU 24.1 % of 989 TFLOP/s x 1 (p50; p95 24.1 %" in mfu_in_words(model).replace("%", " %")


def test_attention_counts_when_its_shape_is_given() -> None:
    """12 x layers x hidden x sequence more per token."""
    history = training()
    stepping(history, *[1 / STEPS_PER_SECOND] * 64)
    plain = efficiency(trained(history, params=PARAMETERS, tokens_per_step=TOKENS)).model
    case = trained(history, params=PARAMETERS, tokens_per_step=TOKENS, layers=6, hidden=768, sequence=512)
    whole = efficiency(case).model

    assert plain is not None
    assert plain.mfu is not None
    assert whole is not None
    assert whole.mfu is not None
    more = 1 + 12 * 6 * 768 * 512 / (6 * PARAMETERS)
    assert whole.mfu.p50 == pytest.approx(plain.mfu.p50 * more, rel=0.01)


def test_the_first_steps_are_left_out_and_the_slow_ones_show_in_the_tail() -> None:
    """Compilation in the first step would spoil a mean."""
    history = training()
    stepping(history, *[5.0] * 4, *[0.01] * 50, 0.1, 0.1, 0.1)
    model = efficiency(trained(history, params=PARAMETERS, tokens_per_step=TOKENS)).model

    assert model is not None
    assert model.step_seconds is not None
    assert model.step_seconds.p50 == pytest.approx(0.01)
    assert model.step_seconds.p99 == pytest.approx(0.1, rel=0.01)


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
    for second in range(4, -1, -1):
        intervals = pattern * (60 // len(pattern))
        steps = Steps(pid=PID, tid=PID, count=60 * (20 - second), step_ago_seconds=0.0, interval_seconds=intervals)
        history.add(56.0 - second * 60 * seconds, steps)
    model = efficiency(trained(history, params=PARAMETERS, tokens_per_step=TOKENS)).model

    assert model is not None
    assert model.tokens_per_second is not None
    assert model.tokens_per_second.p50 == pytest.approx(TOKENS / seconds, rel=0.15)
    assert model.tokens_per_second.p99 == pytest.approx(TOKENS / seconds, rel=0.3)


@pytest.mark.parametrize(("each", "seconds"), [(1.0, 0.1), (2.0, 0.2), (10.0, 1.0), (None, None)])
def test_steps_of_optimizers_that_take_turns_are_one_of_the_model(each: float | None, seconds: float | None) -> None:
    """Ten counts a second: of two optimizers five steps, of ten one; unknown where they are too many to be told apart."""
    history = training()
    for second in range(4, -1, -1):
        steps = Steps(pid=PID, tid=PID, count=60 * (20 - second), step_ago_seconds=0.0, interval_seconds=(0.1,) * 60,
                      steps_each_turn=each)  # fmt: skip
        history.add(56.0 - second * 6.0, steps)
    model = efficiency(trained(history, params=PARAMETERS, tokens_per_step=TOKENS)).model

    assert model is not None
    assert (model.step_seconds and model.step_seconds.p50) == (seconds and pytest.approx(seconds))
    assert (model.tokens_per_second and model.tokens_per_second.p50) == (seconds and pytest.approx(TOKENS / seconds))
    assert ("take turns" in model.missing) is (each is None)


def test_a_part_of_a_card_is_held_against_its_own_multiprocessors() -> None:
    """A slice of an H200 is no H200: 16 of 132, at the clock of the whole."""
    history = training()
    stepping(history, *[1 / STEPS_PER_SECOND] * 64)
    whole = h200("GPU-0")
    part = structs.replace(
        whole, uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", sms=16, sm_clock_max_mhz=None, parent_uuid="GPU-0"
    )
    history.add(0.0, part)
    case = trained(history, params=PARAMETERS, tokens_per_step=TOKENS)
    history.add(history.at, bound(PID, "MIG-1"))
    model = efficiency(case).model

    assert model is not None
    assert model.peak_tflops == pytest.approx(16 * 4096 * 1980e6 / 1e12, rel=0.01)


def stepped(*bindings: GpuBinding, world_size: int | None = None, factor: float = 1.0) -> ModelFigures:
    """The recorded training, whose processes use these cards of eight or of a part of the first; the tokens times a factor."""
    history = training()
    stepping(history, *[1 / STEPS_PER_SECOND] * 64)
    for index in range(2, 8):
        history.add(0.0, h200(f"GPU-{index}", index))
    part = structs.replace(h200("MIG-1"), sms=16, sm_clock_max_mhz=None, parent_uuid="GPU-0")
    history.add(0.0, part)
    case = trained(history, params=PARAMETERS, tokens_per_step=TOKENS * factor)
    for rank, one in enumerate(bindings):
        process = Process(
            pid=one.pid,
            start_ticks=1 + rank,
            parent_pid=1,
            name="python",
            command=("python", "train.py"),
            python=True,
            rank=rank,
            world_size=world_size,
        )
        history.add(0.1, process)
        history.add(history.at, one)
    found = efficiency(Case(history, structs.replace(case.session, root_pids=tuple(one.pid for one in bindings)))).model
    assert found is not None
    return found


def test_where_nobody_knows_which_cards_the_job_uses_there_is_no_mfu() -> None:
    """Eight are in sight: a single process may use one of them, or all."""
    seen = tuple(f"GPU-{index}" for index in range(8))
    model = stepped(GpuBinding(pid=PID, uuids=(), visible=seen, how="", cuda=None))

    assert model.mfu is None
    assert "nothing tells which GPUs the job uses (8 in sight)" in mfu_in_words(model)


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
    model = stepped(*bindings, world_size=world_size)

    assert model.cards == cards
    assert model.mfu is not None
    assert model.mfu.p50 == pytest.approx(239.0 / 989.0 / cards, rel=0.01)


def test_who_is_listed_on_a_card_and_on_a_part_of_it_is_held_against_the_part() -> None:
    """16 of 132 multiprocessors, and not the whole beside them."""
    model = stepped(bound(PID, "GPU-0", "MIG-1"), factor=0.1)

    assert model.cards == 1
    assert model.peak_tflops == pytest.approx(16 * 4096 * 1980e6 / 1e12, rel=0.01)


def test_more_than_the_cards_can_do_is_told_as_impossible_and_passes_no_gate() -> None:
    """Ten times the tokens: 2.4 times what the card can do at most; the gate knows nothing then."""
    model = stepped(bound(PID, "GPU-0"), factor=10.0)
    code, words = gated(verdict(state="healthy", cause="gpu_bound", efficiency=Efficiency(model=model)), 35.0)

    assert model.mfu is None
    assert "241% of 989 TFLOP/s x 1 cannot be: check --params and --tokens-per-step" in mfu_in_words(model)
    assert code == EXIT_CODES["inconclusive"]
    assert "cannot be" in words


def test_without_a_step_clock_there_is_no_mfu_and_that_is_said() -> None:
    """Attached to a job that was not started by run."""
    model = efficiency(trained(training(), params=PARAMETERS, tokens_per_step=TOKENS)).model

    assert model is not None
    assert model.mfu is None
    assert "perfwatch run" in mfu_in_words(model)


def test_nothing_is_said_of_a_model_that_nobody_described() -> None:
    """Parameters cannot be seen from outside."""
    assert efficiency(trained(training())).model is None


def test_an_unknown_card_has_bandwidth_but_no_peak() -> None:
    """What is not known is said, what is known is given."""
    history = History()
    under(history, "elementwise", 0.0, 5.0)
    known = h200()
    history.add(
        0.0,
        Gpu(
            uuid=known.uuid,
            index=0,
            name="NVIDIA Future",
            compute_capability=(99, 0),
            sms=200,
            memory_bus_bits=known.memory_bus_bits,
            memory_clock_max_mhz=known.memory_clock_max_mhz,
        ),
    )
    figures = efficiency(trained(history))

    assert figures.cards[0].tensor_tflops is None
    assert figures.cards[0].dram_share is not None
    assert figures.cards[0].dram_share.p50 == pytest.approx(0.88)
    assert "not in the table" in " ".join(in_words(figures.cards[0]))
    assert "not in the table" in headline(figures, trained(history))


def test_a_matrix_product_on_a_power_capped_card_is_told_at_both_clocks() -> None:
    """Its tensor cores are busy for 94 % of the cycles, which bring 87 % of what it can do at 1,470 MHz, 65 % of that at 1,980."""
    history = History()
    under(history, "bf16_matmul", 0.0, 5.0)
    history.add(0.0, h200())
    card = efficiency(trained(history)).cards[0]

    assert card.tensor_tflops is not None
    assert card.hfu_at_boost is not None
    assert card.hfu_at_clock is not None
    assert card.tensor_tflops.p50 == pytest.approx(691, rel=0.01)
    assert card.hfu_at_clock.p50 == pytest.approx(0.871, abs=0.005)
    assert card.hfu_at_boost.p50 == pytest.approx(0.871 * 1470 / 1980, rel=0.01)
