"""What holds a GPU job back is named from the card's units, its host and its neighbours; and only where all of them agree."""

from collections.abc import Sequence

import msgspec
import pytest

from perfwatch.probes.readings import (
    Frame,
    Gpu,
    GpuErrors,
    GpuEvent,
    GpuProcess,
    GpuSample,
    GpuSilence,
    KernelMessage,
    ProcessEnded,
    Reading,
    SourceLine,
    Traceback,
)
from perfwatch.triage.rules import wrong_precision
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.verdict import Finding, Verdict
from tests.cards import UUID, bound, h200
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


def ended(job: Training, code: int = 1) -> Training:
    """The process is gone."""
    job.add(ProcessEnded(pid=PID, start_ticks=1, exit_code=code))
    return job


@pytest.mark.parametrize(
    ("xid", "cause"),
    [
        (79, "gpu_fault"),
        (48, "gpu_fault"),
        (31, "gpu_fault"),
        (43, "crashed"),  # an assertion in the program's own kernel
        (63, "crashed"),  # corrected
    ],
)
def test_what_the_driver_announced_explains_the_end(xid: int, cause: str) -> None:
    """Errors that were corrected, or that follow from any end, explain nothing."""
    job = under_load("bf16_matmul", STEPS)
    job.add(GpuEvent(uuid=UUID, xid=xid))

    assert ended(job).verdict().cause == cause


def in_the_log(ago_seconds: float) -> KernelMessage:
    """The card of the job has fallen off the bus, as the kernel's log says it."""
    text = "NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return KernelMessage(kind="xid", text=text, logged_ago_seconds=ago_seconds)


def test_an_xid_from_the_kernel_log_counts_only_when_it_was_logged_while_we_watched() -> None:
    """Last week's error has not ended this job."""
    fresh, stale = under_load("bf16_matmul", STEPS), under_load("bf16_matmul", STEPS)
    fresh.add(in_the_log(1.0))
    stale.add(in_the_log(600_000.0))

    assert ended(fresh).verdict().cause == "gpu_fault"
    assert ended(stale).verdict().cause == "crashed"


OTHER = "GPU-1"
BROKEN = [
    GpuEvent(uuid=OTHER, xid=79),
    KernelMessage(kind="xid", text="NVRM: Xid (PCI:0000:1b:00): 79, GPU lost.", logged_ago_seconds=0.0),
    Gpu(uuid=OTHER, index=1, name="NVIDIA H200", pci_bus="00000000:1B:00.0", lost=True),
    GpuErrors(uuid=OTHER, uncorrected=3),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("uuid", "cause"), [(UUID, "crashed"), (OTHER, "gpu_fault")])
def test_a_card_that_the_job_does_not_use_has_not_ended_it(broken: Reading, uuid: str, cause: str) -> None:
    """The node has eight, and somebody else is on another one."""
    job = Training(binding=bound(PID, uuid))
    job.add(msgspec.structs.replace(h200(), pci_bus="00000000:00:06.0"))
    job.add(
        Gpu(uuid=OTHER, index=1, name="NVIDIA H200", pci_bus="00000000:1B:00.0"), GpuErrors(uuid=OTHER, uncorrected=0)
    )
    job.goes_on(12, STEPS, load="bf16_matmul")
    job.add(broken)

    assert ended(job).verdict().cause == cause


@pytest.mark.parametrize(
    ("xid", "seconds", "cause"),
    [(31, 30, "gpu_fault"), (31, 90, "crashed"), (79, 700, "gpu_fault"), (79, 1000, "crashed")],
)
def test_an_error_that_the_job_has_outlived_has_not_ended_it(xid: int, seconds: float, cause: str) -> None:
    """A program's own is raised within a step; those who wait for a broken card give up after NCCL's timeout."""
    job = under_load("bf16_matmul", STEPS)
    job.add(GpuEvent(uuid=UUID, xid=xid))
    job.history.at += seconds

    assert ended(job).verdict().cause == cause


def test_a_job_that_ended_with_0_had_no_broken_card() -> None:
    """Whatever the driver announced."""
    job = under_load("bf16_matmul", STEPS)
    job.add(GpuEvent(uuid=UUID, xid=31))

    assert ended(job, code=0).verdict().cause == "finished"


@pytest.mark.parametrize(("holder", "cause"), [(4711, "crashed"), (PID, "gpu_fault")])
def test_a_fault_of_somebody_elses_kernel_on_the_same_card_has_not_ended_it(holder: int, cause: str) -> None:
    """The kernel's log names the process, as the host counts; NVML's event does not."""
    job = under_load("bf16_matmul", STEPS)
    text = "NVRM: Xid (PCI:0000:00:06): 31, pid=90001, name=python"
    job.add(msgspec.structs.replace(h200(), pci_bus="00000000:00:06.0"))
    job.add(GpuProcess(uuid=UUID, pid=90_001, local_pid=holder), GpuEvent(uuid=UUID, xid=31))
    job.add(KernelMessage(kind="xid", text=text, logged_ago_seconds=0.0, pid=90_001))

    assert ended(job).verdict().cause == cause


def test_an_exception_that_has_nothing_to_do_with_the_card_is_a_crash() -> None:
    """An illegal access of some other process was announced as well."""
    job = under_load("bf16_matmul", STEPS)
    job.add(GpuEvent(uuid=UUID, xid=31), Traceback(pid=PID, exception="KeyError", text="KeyError: 'label'"))

    assert ended(job).verdict().cause == "crashed"


def test_the_memory_of_the_device_ran_out() -> None:
    """What was asked for, and how full the card was."""
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 279.60 GiB. GPU 0 has a total capacity of 139.80 GiB"
    job = under_load("bf16_matmul", STEPS, memory_used_bytes=100 * 2**30)
    job.add(Traceback(pid=PID, exception="OutOfMemoryError", text=words))
    verdict = ended(job).verdict()

    assert verdict.cause == "out_of_memory"
    assert "279.60 GiB" in verdict.summary
    assert "100.0 GiB of 140.4" in verdict.summary


def silent(waited: float, **facts: object) -> Verdict:
    """A training that stands at one line while a call of ours into the driver does not come back."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=waited, **facts))  # type: ignore[arg-type]
    return job.verdict()


def test_a_driver_that_does_not_answer_is_named() -> None:
    """Our own call waits, and the ranks stand still."""
    verdict = silent(15.0, state="D")

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")


@pytest.mark.parametrize(("error", "witness"), [(GpuEvent(uuid=UUID, xid=79), "nvml"), (in_the_log(1.0), "kernel_log")])
def test_an_error_of_the_hardware_makes_a_silent_driver_certain(error: Reading, witness: str) -> None:
    """Xid 79 beside it, as the driver announces it or as the kernel's log has it; the line stands in the evidence."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0), error)
    verdict = job.verdict()

    assert verdict.cause == "driver_unresponsive"
    assert verdict.confidence > silent(15.0).confidence
    assert (witness, "Xid 79 (the card has fallen off the bus)") in [(e.witness, e.observed) for e in verdict.evidence]


def test_an_old_line_in_the_kernels_log_makes_nothing_certain() -> None:
    """That was before this job."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0), in_the_log(600_000.0))

    assert job.verdict().confidence == silent(15.0).confidence


def stands_beside(*facts: Reading) -> Verdict:
    """The same training, and what the driver says of some card."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(8, [READS_LOSS])
    job.add(*facts)
    return job.goes_on(12, [READS_LOSS]).verdict()


def lost(uuid: str) -> tuple[Reading, ...]:
    """A card that has fallen off the bus, by the driver and by the kernel's log."""
    return (msgspec.structs.replace(h200(uuid, 7), lost=True), GpuEvent(uuid=uuid, xid=79))


def test_a_card_that_the_job_stands_on_and_that_is_lost_is_named_with_the_error() -> None:
    """No call of ours need be silent for that."""
    verdict = stands_beside(*lost(UUID))

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")
    assert "is lost" in verdict.summary
    assert "Xid 79" in verdict.summary


def test_a_slice_is_lost_with_its_card() -> None:
    """The driver speaks of the whole; the job is bound to a part of it."""
    job = Training(binding=bound(PID, "MIG-1")).goes_on(14, [READS_LOSS])
    job.add(msgspec.structs.replace(h200("MIG-1", 0), parent_uuid=UUID), *lost(UUID))
    verdict = job.goes_on(12, [READS_LOSS]).verdict()

    assert (verdict.state, verdict.cause) == ("hung", "driver_unresponsive")


@pytest.mark.parametrize("facts", [lost(OTHER), (GpuSilence(call="sample", uuid=OTHER, waited_seconds=30.0),)])
def test_what_the_driver_says_of_a_card_of_others_hangs_nobody(facts: tuple[Reading, ...]) -> None:
    """The job uses another one, and stands still for a reason of its own."""
    assert stands_beside(*facts).cause != "driver_unresponsive"


def test_a_driver_that_is_merely_slow_is_not_accused() -> None:
    """Loading it takes a second or two."""
    assert silent(1.5).cause != "driver_unresponsive"


def test_a_driver_that_answers_again_is_not_accused() -> None:
    """A sample came after the silence."""
    job = Training().goes_on(6, STEPS, load="bf16_matmul").goes_on(20, [READS_LOSS])
    job.history.add(25.0, GpuSilence(call="sample", uuid=UUID, waited_seconds=15.0))
    job.add(GpuSample(uuid=UUID, utilisation=1.0))

    assert job.verdict().cause != "driver_unresponsive"


def test_a_job_that_goes_on_does_not_need_the_answer() -> None:
    """The driver serves it, whatever our own question waits for."""
    job = Training().goes_on(12, STEPS).steps(100, *[0.5] * 20)
    job.add(GpuSilence(call="sample", uuid=UUID, waited_seconds=30.0))

    assert job.verdict().cause != "driver_unresponsive"


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
