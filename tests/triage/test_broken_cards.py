"""A card that fails under a job: what the driver announced explains the end, and a driver that does not answer is named."""

import msgspec
import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Gpu,
    GpuErrors,
    GpuEvent,
    GpuProcess,
    GpuSample,
    GpuSilence,
    KernelMessage,
    ProcessEnded,
    Reading,
    Traceback,
)
from tests.cards import UUID, bound, h200
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, READS_LOSS, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
OTHER = "GPU-1"
BROKEN = [
    GpuEvent(uuid=OTHER, xid=79),
    KernelMessage(kind="xid", text="NVRM: Xid (PCI:0000:1b:00): 79, GPU lost.", logged_ago_seconds=0.0),
    Gpu(uuid=OTHER, index=1, name="NVIDIA H200", pci_bus="00000000:1B:00.0", lost=True),
    GpuErrors(uuid=OTHER, uncorrected=3),
]


def training(**sample: object) -> Training:
    """Twelve seconds of one that fills its card."""
    return Training(sample=sample).goes_on(12, STEPS, load="bf16_matmul", samples=10)


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
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=xid))

    assert ended(job).verdict().cause == cause


def in_the_log(ago_seconds: float) -> KernelMessage:
    """The card of the job has fallen off the bus, as the kernel's log says it."""
    text = "NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return KernelMessage(kind="xid", text=text, logged_ago_seconds=ago_seconds)


def test_an_xid_from_the_kernel_log_counts_only_when_it_was_logged_while_we_watched() -> None:
    """Last week's error has not ended this job."""
    fresh, stale = training(), training()
    fresh.add(in_the_log(1.0))
    stale.add(in_the_log(600_000.0))

    assert ended(fresh).verdict().cause == "gpu_fault"
    assert ended(stale).verdict().cause == "crashed"


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
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=xid))
    job.history.at += seconds

    assert ended(job).verdict().cause == cause


def test_a_job_that_ended_with_0_had_no_broken_card() -> None:
    """Whatever the driver announced."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=31))

    assert ended(job, code=0).verdict().cause == "finished"


@pytest.mark.parametrize(("holder", "cause"), [(4711, "crashed"), (PID, "gpu_fault")])
def test_a_fault_of_somebody_elses_kernel_on_the_same_card_has_not_ended_it(holder: int, cause: str) -> None:
    """The kernel's log names the process, as the host counts; NVML's event does not."""
    job = training()
    text = "NVRM: Xid (PCI:0000:00:06): 31, pid=90001, name=python"
    job.add(msgspec.structs.replace(h200(), pci_bus="00000000:00:06.0"))
    job.add(GpuProcess(uuid=UUID, pid=90_001, local_pid=holder), GpuEvent(uuid=UUID, xid=31))
    job.add(KernelMessage(kind="xid", text=text, logged_ago_seconds=0.0, pid=90_001))

    assert ended(job).verdict().cause == cause


def test_an_exception_that_has_nothing_to_do_with_the_card_is_a_crash() -> None:
    """An illegal access of some other process was announced as well."""
    job = training()
    job.add(GpuEvent(uuid=UUID, xid=31), Traceback(pid=PID, exception="KeyError", text="KeyError: 'label'"))

    assert ended(job).verdict().cause == "crashed"


def test_the_memory_of_the_device_ran_out() -> None:
    """What was asked for, and how full the card was."""
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 279.60 GiB. GPU 0 has a total capacity of 139.80 GiB"
    job = training(memory_used_bytes=100 * 2**30)
    job.add(Traceback(pid=PID, exception="OutOfMemoryError", text=words))
    verdict = ended(job).verdict()

    assert verdict.cause == "out_of_memory"
    assert "279.60 GiB" in verdict.summary
    assert "100.0 GiB of 140.4" in verdict.summary


def silent(waited: float, **facts: object) -> Verdict:
    """A training that stands at one line while a call of ours into the driver has not returned."""
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
