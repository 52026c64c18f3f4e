"""What machines and schedulers say: kernel logs, nvidia-smi, sacct, scontrol, kubectl. They explain an end, and are not of it."""

from pathlib import Path

import pytest

from tests.autopsy.left_files import judged, of_log
from tests.autopsy.test_logs import KEY_ERROR, STEPS, WATCHDOG

XID = "[Sun Nov 29 {time} 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
OOM = "[Sun Nov 29 {time} 2026] Out of memory: Killed process 9876 (python) total-vm:9912kB, anon-rss:812kB\n"
STAMP = "2026-11-29 {time},000 - train - ERROR - failed\n"
SMI = """
==============NVSMI LOG==============

Timestamp                                 : Sun Nov 29 10:00:00 2026
Driver Version                            : 570.86.15
Attached GPUs                             : 2
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : {volatile}
        Aggregate
            DRAM Uncorrectable            : 12
    Remapped Rows
        Correctable Error                 : 0
        Remapping Failure Occurred        : {failure}
GPU 00000000:43:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 0
"""
POD = """Name:             train-0
Namespace:        ml
Node:             node-7/10.0.0.7
Status:           Failed
Containers:
  main:
    State:          Terminated
      Reason:       {reason}
      Exit Code:    {code}
      Started:      Sun, 29 Nov 2026 09:00:00 +0000
      Finished:     Sun, 29 Nov 2026 10:00:00 +0000
    Restart Count:  0
"""


def write(folder: Path, **texts: str) -> Path:
    """A folder of files by name."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def test_a_lost_card_precedes_what_the_program_says(tmp_path: Path) -> None:
    """The driver's word comes a few seconds before."""
    said = STAMP.format(time="10:00:03") + "RuntimeError: CUDA error: unknown error\n"
    verdict = judged(write(tmp_path, job=STEPS + said, kernel=XID.format(time="10:00:01")))

    assert (verdict.cause, verdict.sub_cause, verdict.retry) == ("gpu_fault", "lost_gpu", "yes")


@pytest.mark.parametrize(
    "kernel", [XID.format(time="01:00:00"), OOM.format(time="10:00:01"), OOM.format(time="01:00:00")]
)
def test_what_a_machine_says_of_other_jobs_does_not_count(tmp_path: Path, kernel: str) -> None:
    """An error of the night, a process of another job: the program itself gives the reason."""
    verdict = judged(write(tmp_path, job=STEPS + STAMP.format(time="10:00:03") + KEY_ERROR, kernel=kernel))

    assert verdict.sub_cause == "python_exception"


def test_an_oom_kill_explains_a_job_that_gives_no_reason(tmp_path: Path) -> None:
    """The watchdogs of the others only say that a rank is missing."""
    verdict = judged(write(tmp_path, job=STEPS + WATCHDOG.format(rank=0), kernel=OOM.format(time="10:00:01")))

    assert (verdict.cause, verdict.sub_cause) == ("out_of_memory", "oom_killer")


@pytest.mark.parametrize(
    ("volatile", "failure", "sub_cause"), [(3, "No", "ecc_error"), (0, "Yes", "ecc_error"), (0, "No", None)]
)
def test_nvidia_smi_shows_a_broken_card(tmp_path: Path, volatile: int, failure: str, sub_cause: str | None) -> None:
    """Errors since the driver was loaded, and rows that could not be remapped; what the card has counted in its life does not matter."""
    verdict = of_log(tmp_path, SMI.format(volatile=volatile, failure=failure), "smi.txt")

    assert verdict.sub_cause == sub_cause
    assert sub_cause is None or "GPU 00000000:1B:00.0" in verdict.summary


@pytest.mark.parametrize(
    ("reason", "code", "cause", "sub_cause"),
    [
        ("OOMKilled", 137, "out_of_memory", "cgroup_out_of_memory"),
        ("Error", 137, "killed", "sigkill"),
        ("Error", 143, "killed", "terminated"),
    ],
)
def test_a_pods_description_tells_its_end(tmp_path: Path, reason: str, code: int, cause: str, sub_cause: str) -> None:
    """As kubectl describe pod prints it."""
    verdict = of_log(tmp_path, POD.format(reason=reason, code=code), "pod.txt")

    assert (verdict.cause, verdict.sub_cause) == (cause, sub_cause)


@pytest.mark.parametrize(
    ("text", "sub_cause"),
    [
        ("JobID           JobName      State ExitCode\n77                train    TIMEOUT      0:0\n", "time_limit"),
        ("77|train|PREEMPTED|0:0|node-[1-4]\n", "preempted"),
        ("77.batch   batch  ann  16  OUT_OF_ME+   0:125\n", "cgroup_out_of_memory"),
        ("77   train  gpu  16  NODE_FAIL   0:0\n", "node_failure"),
        ("77   train  gpu  16  FAILED   1:0\n", "failed_child"),
        ("77   train  gpu  16  CANCELLED by 1000   0:0\n", "interrupted"),
        ("   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)\n", "time_limit"),
        ("   JobState=OUT_OF_MEMORY Reason=OutOfMemory\n", "cgroup_out_of_memory"),
        ("   JobState=COMPLETED Reason=None\n", None),
    ],
)
def test_slurm_tells_how_it_ended_a_job(tmp_path: Path, text: str, sub_cause: str | None) -> None:
    """By sacct in two forms, and by scontrol show job."""
    assert of_log(tmp_path, text, "slurm.txt").sub_cause == sub_cause
