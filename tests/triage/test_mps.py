"""Beside a job that uses its card through MPS: the server is no stranger, another client is one."""

import pytest

from perfwatch.triage.cards.neighbours import shared
from perfwatch.triage.rules import shared_gpu
from perfwatch.verdict import Abstention, Finding
from perfwatch_probes.readings import GpuProcess
from tests.cards import UUID
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]
OWN = GpuProcess(uuid=UUID, pid=PID, local_pid=PID, kind="mps", memory_bytes=2**33)
SERVER = GpuProcess(uuid=UUID, pid=50, local_pid=50, memory_bytes=30 * 2**20, sm_utilisation=0.9)
CLIENT = GpuProcess(uuid=UUID, pid=60, local_pid=60, kind="mps", memory_bytes=2**33)
MEASURED = GpuProcess(uuid=UUID, pid=60, local_pid=60, kind="mps", memory_bytes=2**33, sm_utilisation=0.4)
OTHER = GpuProcess(uuid=UUID, pid=70, local_pid=70, memory_bytes=2**33, sm_utilisation=0.3)


def beside(*listed: GpuProcess) -> Training:
    """Twelve seconds of a training, while the driver lists these."""
    job = Training()
    for second in range(12):
        for one in listed:
            job.history.add(float(second), one)
    return job.goes_on(12, STEPS, load="bf16_matmul", samples=10)


def test_the_server_to_which_the_jobs_own_work_is_booked_is_no_stranger() -> None:
    """It is not of the job, and takes 90 % for it; that nothing can be said of others is said."""
    job = beside(OWN, SERVER)
    verdict, found = job.verdict(), shared_gpu.judge(job.case())

    assert verdict.cause == "gpu_bound"
    assert isinstance(found, Abstention)
    assert "its server, pid 50" in found.missing[0].reason
    assert not shared(job.history, UUID)


@pytest.mark.parametrize(
    ("listed", "confidence", "blamed"),
    [
        ((OWN, SERVER, CLIENT), shared_gpu.UNMEASURED, ("pid 60",)),
        ((OWN, SERVER, MEASURED), shared_gpu.SURE, ("pid 60",)),
        ((OWN, SERVER, OTHER), shared_gpu.UNMEASURED, ("pid 50", "pid 70")),  # one of them is the server
    ],
)
def test_whoever_is_there_beside_job_and_server_is_noted(
    listed: tuple[GpuProcess, ...], confidence: float, blamed: tuple[str, ...]
) -> None:
    """Blamed only for what is measured of it."""
    found = shared_gpu.judge(beside(*listed).case())

    assert isinstance(found, Finding)
    assert found.confidence == confidence
    assert all(one in found.summary for one in blamed)
    assert len(blamed) > 1 or "pid 50" not in found.summary
    assert shared(beside(*listed).history, UUID)
