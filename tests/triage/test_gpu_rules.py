"""What holds a GPU job back is named from the card's units, its host and its neighbours; and only where all of them agree."""

from collections.abc import Sequence

import pytest

from perfwatch.triage.rules import wrong_precision
from perfwatch.triage.slowness import NOTED
from perfwatch.verdict import Finding
from perfwatch_probes.readings import (
    Frame,
    GpuProcess,
    SourceLine,
)
from tests.cards import UUID
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, READS_LOSS, TORCH, TRAIN, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
OTHER = "GPU-other"
COPIES = (Frame("train", TRAIN, 30),)
EMPTIES = (Frame("empty_cache", f"{TORCH}/cuda/memory.py", 224), Frame("train", TRAIN, 31))
EAGER = (
    Frame(
        "eager_attention_forward", "/home/user/venv/lib/python3.12/site-packages/transformers/models/x/modeling_x.py", 9
    ),
    *FORWARD,
)
PRODUCT = (Frame("train", TRAIN, 50),)
FORCES = (Frame("train", TRAIN, 51),)


def under_load(load: str, stacks: Sequence[tuple[Frame, ...]], **sample: object) -> Training:
    """Twelve seconds of a training under a load."""
    job = Training(sample=sample)
    job.add(SourceLine(file=TRAIN, line=30, text="    batch = batch.to(device)", calls=("batch.to",)))
    return job.goes_on(12, stacks, load=load, samples=10)


@pytest.mark.parametrize(
    ("load", "stacks", "cause"),
    [
        ("bf16_matmul", STEPS, "gpu_bound"),
        ("tf32_matmul", STEPS, "gpu_bound"),
        ("fp32_matmul", STEPS, "wrong_precision"),
        ("elementwise", STEPS, "memory_bound_gpu"),
        ("tiny_kernels", STEPS, "host_bound_python"),
        ("item_each_step", [*STEPS, READS_LOSS], "synchronising"),
        ("item_each_step", [*STEPS, READS_LOSS, EMPTIES], "allocator_thrash"),
        ("pageable_copies", [*STEPS, COPIES, COPIES], "copy_bound"),
        ("late_peer", STEPS, "underfilled_gpu"),  # of a job with one rank: there is no peer
        ("elementwise", [*STEPS, EAGER], "slow_attention_fallback"),
    ],
)
def test_each_measured_load_has_its_name(load: str, stacks: list[tuple[Frame, ...]], cause: str) -> None:
    """The table of measured loads, beside a host that does what goes with it."""
    assert under_load(load, stacks).verdict().cause == cause


@pytest.mark.parametrize("load", ["bf16_matmul", "elementwise", "fp32_matmul"])
def test_a_wait_for_a_card_that_is_busy_is_no_synchronising(load: str) -> None:
    """Half of the samples at .item(), and not a gap on the card."""
    assert under_load(load, [*STEPS, READS_LOSS, READS_LOSS, READS_LOSS]).verdict().cause != "synchronising"


def test_an_unmonitored_card_gets_a_name_with_less_confidence() -> None:
    """Utilisation alone: 36 % of the time with a kernel."""
    seen = under_load("tiny_kernels", STEPS).verdict()
    blind = Training(monitored=False).goes_on(12, STEPS, load="tiny_kernels", samples=10).verdict()

    assert seen.cause == blind.cause == "host_bound_python"
    assert blind.confidence < seen.confidence


@pytest.mark.parametrize(
    ("reasons", "clock", "cause"),
    [
        (0x40, 1200, "throttled_gpu"),
        (0x80, 900, "throttled_gpu"),
        (0x04, 1470, "gpu_bound"),  # the power cap alone: normal for a card that runs flat out
        (0x40, 1960, "gpu_bound"),  # a reason without an effect
        (0x00, 1470, "gpu_bound"),
    ],
)
def test_heat_and_a_cut_of_power_are_named_and_the_power_cap_is_not(reasons: int, clock: int, cause: str) -> None:
    """Against the card's own maximum, where nothing else is known."""
    assert under_load("bf16_matmul", STEPS, reasons=reasons, sm_clock_mhz=clock).verdict().cause == cause


@pytest.mark.parametrize(
    ("load", "generation", "width", "cause"),
    [
        ("pageable_copies", 3, 8, "degraded_link"),
        ("pageable_copies", 5, 16, "copy_bound"),
        ("bf16_matmul", 1, 16, "gpu_bound"),  # noted, but nothing of note crosses it
    ],
)
def test_a_link_below_its_maximum_is_named_where_the_job_uses_it(
    load: str, generation: int, width: int, cause: str
) -> None:
    """Card and slot could do generation 5 with 16 lanes."""
    job = under_load(load, [*STEPS, COPIES, COPIES], pcie_generation=generation, pcie_width=width)

    assert job.verdict().cause == cause


def test_bytes_that_nobody_counted_are_not_taken_for_none() -> None:
    """A card without units and without a counter: copies may be what it waits for, and a narrow link may be in use."""
    job = Training(monitored=False, sample={"utilisation": 0.2, "pcie_generation": 3, "pcie_width": 8})
    job.add(SourceLine(file=TRAIN, line=30, text="    batch = batch.to(device)", calls=("batch.to",)))
    verdict = job.goes_on(12, [*STEPS, COPIES, COPIES], load="pageable_copies", samples=10).verdict()
    (link,) = [one for one in verdict.findings if one.cause == "degraded_link"]

    assert "pcie" in {one.witness for one in verdict.missing}
    assert verdict.confidence <= 0.7
    assert [one.observed for one in link.evidence if one.claim == "uses the link"] == ["not told by this card"]


@pytest.mark.parametrize(("share", "cause"), [(0.4, "shared_gpu"), (0.0, "gpu_bound")])
def test_a_neighbour_is_named_when_it_computes(share: float, cause: str) -> None:
    """A process that holds memory takes no time."""
    job = Training()
    for second in range(12):
        job.history.add(
            float(second), GpuProcess(uuid=UUID, pid=4711, local_pid=4711, sm_utilisation=share, memory_bytes=2**30)
        )
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=PID, local_pid=PID, sm_utilisation=0.5))
    verdict = job.goes_on(12, [*STEPS, READS_LOSS], load="bf16_matmul", samples=10).steps(900, *[0.2] * 60).verdict()

    assert verdict.cause == cause
    assert cause != "shared_gpu" or "pid 4711" in verdict.summary


def test_in_a_container_the_jobs_own_process_is_not_taken_for_a_stranger() -> None:
    """The driver's pids mean nothing there: one process on the card, one process of the job that uses it."""
    job = Training()
    for second in range(12):
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=90_001, sm_utilisation=0.9, memory_bytes=2**33))

    assert job.goes_on(12, STEPS, load="bf16_matmul", samples=10).verdict().cause == "gpu_bound"


def test_no_gpu_rule_speaks_of_a_job_without_a_gpu() -> None:
    """The same training on the CPU."""
    verdict = Training(card=False).goes_on(12, STEPS, samples=10).steps(100, *[0.1] * 60).verdict()

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert verdict.efficiency is None


def test_a_card_that_was_given_work_a_moment_ago_is_not_called_idle() -> None:
    """Most of what was looked at was before training began."""
    job = (
        Training()
        .goes_on(28, STEPS, load="idle_context", samples=10)
        .goes_on(0.5, STEPS, load="bf16_matmul", samples=10)
    )

    assert job.steps(100, *[0.1] * 60).verdict().cause != "cpu_training"


def test_a_model_that_was_left_on_the_cpu_is_said() -> None:
    """It holds a card and asks nothing of it."""
    verdict = Training().goes_on(12, STEPS, load="idle_context", samples=10).steps(100, *[0.1] * 60).verdict()

    assert verdict.cause == "cpu_training"
    assert "is the model on the CPU?" in verdict.summary


@pytest.mark.parametrize(
    ("stacks", "confidence"),
    [
        (STEPS, wrong_precision.SURE),
        ([PRODUCT, *3 * [READS_LOSS]], wrong_precision.SURE),  # h = x @ w, without any module
        (
            [BACKWARD, OPTIMIZER, READS_LOSS],
            wrong_precision.UNSEEN,
        ),  # it trains, and its forward pass is one compiled function
        ([FORCES, *3 * [READS_LOSS]], NOTED),  # molecules, on purpose in full precision
    ],
)
def test_full_precision_is_a_fault_where_matrices_are_multiplied(
    stacks: list[tuple[Frame, ...]], confidence: float
) -> None:
    """To the card a simulation looks the same."""
    job = Training()
    job.add(
        SourceLine(file=TRAIN, line=50, text="    hidden = inputs @ weights", calls=()),
        SourceLine(file=TRAIN, line=51, text="    force = torch.sin(waves * place).sum(0)", calls=("torch.sin", "sum")),
    )
    found = wrong_precision.judge(job.goes_on(12, stacks, load="fp32_matmul", samples=10).case())

    assert isinstance(found, Finding)
    assert found.confidence == confidence
