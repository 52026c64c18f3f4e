"""What machines and schedulers say: kernel logs, nvidia-smi, sacct, scontrol, kubectl. They explain an end, and are not of it."""

import json
import sqlite3
import zipfile
from pathlib import Path

import pytest

from perfwatch.postmortem import diagnose
from perfwatch_probes.readings import TorchTrace
from tests.autopsy.left_files import judged, of_log, recorded
from tests.autopsy.test_logs import KEY_ERROR, STEPS, WATCHDOG
from tests.traces.test_nsys_trace import database

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


DIAG_3 = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | {result:<46} |
| Warning                   | {warning:<46} |
| Diagnostic                | Pass - All                                     |
+---------------------------+------------------------------------------------+
"""


def diagnosis(status: str) -> str:
    """The JSON of version 4, behind a line that a wrapper printed."""
    result = {
        "entity_group": "GPU",
        "entity_id": 3,
        "status": status,
        "warnings": [{"warning": "ECC error in GPU 3", "error_id": 26}],
    }
    tests = [{"name": "memory", "results": [{"entity_id": 0, "status": "Pass"}, result]}]
    return json.dumps(
        {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}], "version": "4.2.3"}}
    )


@pytest.mark.parametrize(
    ("text", "sub_cause", "said"),
    [
        (
            DIAG_3.format(result="Fail - GPU: 3", warning="GPU 3 has uncorrectable memory errors"),
            "failed_diagnostic",
            "GPU 3: GPU Memory",
        ),
        (DIAG_3.format(result="Pass - All", warning=""), None, ""),
        (diagnosis("Fail"), "failed_diagnostic", "GPU 3: memory: Fail ECC error in GPU 3"),
        (diagnosis("Pass"), None, ""),
    ],
)
def test_dcgmi_diag_shows_a_broken_card(tmp_path: Path, text: str, sub_cause: str | None, said: str) -> None:
    """Its table and its JSON; a test that passed is no end."""
    verdict = of_log(tmp_path, text, "diag.txt")

    assert verdict.sub_cause == sub_cause
    assert said in verdict.summary


@pytest.mark.parametrize(
    ("line", "sub_cause"),
    [
        ("[Sun Nov 29 10:00:01 2026] INFO: task python:4242 blocked for more than 120 seconds.", "hung_task"),
        ("Nov 29 10:00:01 node-7 kernel: [9.1] mce: [Hardware Error]: Machine check events logged: CPU 3", "sigkill"),
        (
            "Nov 29 10:00:01 node-7 kernel: [9.1] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00",
            "machine_check",
        ),
        (
            "2026-11-29T10:00:01+0000 node-7 kernel: Out of memory: Killed process 4242 (python) total-vm:99kB",
            "oom_killer",
        ),
    ],
)
def test_a_kernels_log_explains_a_kill(tmp_path: Path, line: str, sub_cause: str) -> None:
    """dmesg, syslog and journalctl -o short-iso; corrected errors explain nothing."""
    shell = STAMP.format(time="10:00:03") + "./run.sh: line 3:  4242 Killed                  python train.py\n"
    verdict = judged(write(tmp_path, job=STEPS + shell, kernel=line + "\n"))

    assert verdict.sub_cause == sub_cause


def test_a_zip_of_one_file_is_that_file(tmp_path: Path) -> None:
    """One of several files is refused by its name, and so is a bomb."""
    for name, members in (("one", ["a.log"]), ("many", ["a.log", "b.log"]), ("bomb", ["zeros.log"])):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for member in members:
                archive.writestr(member, "a" * 50_000_000 if name == "bomb" else STEPS + KEY_ERROR)
    verdict = judged(tmp_path)
    reasons = {one.witness: one.reason for one in verdict.missing}

    assert verdict.sub_cause == "python_exception"
    assert reasons["many.zip"] == "a zip archive of 2 files"
    assert "far more than its size" in reasons["bomb.zip"]


def test_a_window_of_nsight_systems_is_read(tmp_path: Path) -> None:
    """Of its SQLite export, where the time went; another database is refused."""
    database(tmp_path / "window.sqlite")
    with sqlite3.connect(tmp_path / "other.sqlite") as made:
        made.execute("CREATE TABLE users (name TEXT)")
    recording = recorded(tmp_path)
    traces = [one.reading for one in recording.records if isinstance(one.reading, TorchTrace)]

    assert len(traces) == 1
    assert [one.witness for one in diagnose(recording).missing] == ["other.sqlite"]
