"""The command, as a user types it: real files, a real child that reads them, a real session."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfwatch.failures import NAMES
from perfwatch.gauntlet import asking
from perfwatch.postmortem import diagnose
from perfwatch.recording.recording import load
from perfwatch.verdict import Verdict
from tests.autopsy.left_files import judged
from tests.autopsy.test_logs import KEY_ERROR, STEPS
from tests.probes.flight_dumps import Bomb, waiting

pytestmark = pytest.mark.live

DYING = Path(__file__).with_name("dying.py")
ENDS = {
    "abort": "killed", "address_in_use": "crashed", "bus_error": "killed", "checkpoint_mismatch": "crashed", "compile_error": "crashed",
    "data_timeout": "crashed",
    "crashed_data_worker": "crashed", "dead_data_worker": "crashed", "device_mismatch": "crashed", "disk_full": "crashed",
    "division_by_zero": "crashed", "dtype_mismatch": "crashed", "failed_assertion": "crashed", "failed_child": "crashed",
    "host_memory_refused": "out_of_memory", "illegal_instruction": "killed", "interrupted": "killed", "missing_file": "crashed",
    "missing_module": "crashed", "nan_guard": "crashed", "nccl_timeout": "crashed", "permission_denied": "crashed",
    "python_exception": "crashed", "quota_exceeded": "crashed", "rendezvous_timeout": "crashed", "resource_limit": "crashed",
    "runtime_error": "crashed",
    "segmentation_fault": "killed", "shape_mismatch": "crashed", "sigkill": "killed", "storage_error": "crashed",
    "terminated": "killed", "unreachable_service": "crashed", "unsupported_gpu": "crashed",
}  # fmt: skip


def perfwatch(*words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """One command, its output and its exit code."""
    command = [sys.executable, "-m", "perfwatch", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=300)


def test_its_result_is_a_session_that_the_other_commands_read(tmp_path: Path) -> None:
    """The same verdict, here and in an archive; beside a bomb that is listed and does nothing."""
    left = tmp_path / "left"
    left.mkdir()
    for rank in (0, 1):
        (left / f"_dump_{rank}").write_bytes(waiting({"0": ("default_pg", [0, 1], 9 - rank, 8)}))
    (left / "_dump_2").write_bytes(pickle.dumps(Bomb()))
    session = tmp_path / "session"
    said = perfwatch("autopsy", str(left), "--session", str(session), "--json")
    bundled = perfwatch("bundle", str(session), "-o", str(tmp_path / "sent.tar.gz"))
    again = [perfwatch("replay", str(place), "--json") for place in (session, tmp_path / "sent.tar.gz")]
    report = perfwatch("report", str(session), "--format", "md")
    verdict = json.loads(said.stdout)

    assert (said.returncode, bundled.returncode, report.returncode) == (30, 0, 0)
    assert [one["rank"] for one in verdict["culprits"]] == [1]
    assert any(one["source"] == "_dump_2" and "posix.system" in one["reason"] for one in verdict["not_observed"])
    assert not Path("/tmp/perfwatch-was-here").exists()
    assert [json.loads(one.stdout) for one in again] == [verdict, verdict]
    assert "rank 1 never joined" in report.stdout


def test_standard_input_is_a_log(tmp_path: Path) -> None:
    """As kubectl logs gives it; nothing is recorded when that is asked."""
    said = perfwatch("autopsy", "-", "--no-record", text=STEPS + KEY_ERROR)

    assert said.returncode == 41
    assert "GONE  crashed (python_exception)" in said.stdout
    assert "standard input:208" in said.stdout
    assert "recorded in" not in said.stdout


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    """With the reason for each path."""
    said = perfwatch("autopsy", str(tmp_path / "nowhere"), "--no-record")

    assert said.returncode == 3
    assert "no such file or folder" in said.stderr


def test_a_watched_folder_is_judged_until_it_is_asked_to_end(tmp_path: Path) -> None:
    """A log that does not grow any more has ended; SIGTERM ends the watch with 0."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    command = (sys.executable, "-m", "perfwatch", "autopsy", "--watch", str(jobs), "--no-record", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert "watching" in watch.stderr.readline()
        (jobs / "train.log").write_text(STEPS + KEY_ERROR)
        said = watch.stdout.readline()
        watch.terminate()

    assert json.loads(said)["sub_cause"] == "python_exception"
    assert watch.returncode == 0


def died(folder: Path, *words: str) -> tuple[Verdict, Verdict]:
    """The verdicts on a program that ended under ``perfwatch run``: by its recording, and by its log alone."""
    log, session = folder / "train.log", folder / "session"
    shell = f"{sys.executable} {DYING} {' '.join(words)}; exit $?"
    command = (sys.executable, "-m", "perfwatch", "run", "--session", str(session), "--", "bash", "-c", shell)
    with log.open("wb") as output:
        subprocess.run(command, stdout=output, stderr=output, timeout=300)
    ends = time.monotonic() + 60
    while asking.last_verdict(session) is None and time.monotonic() < ends:  # its watcher may still write
        time.sleep(0.2)
    asking.await_outcome(session, bool)
    log.write_bytes(b"".join(line for line in log.open("rb") if not line.startswith(b"perfwatch")))
    return diagnose(load(session)), judged(log)


ALONE = (
    "crashed_data_worker",
    "dead_data_worker",
    "nccl_timeout",
)  # of several processes: what each writes last is read in time there


@pytest.mark.parametrize(
    ("name", "cause"),
    [pytest.param(*one, marks=[pytest.mark.alone] if one[0] in ALONE else []) for one in ENDS.items()],
)
def test_run_and_autopsy_call_an_end_by_one_name(tmp_path: Path, name: str, cause: str) -> None:
    """A program that really ends so; retry is the one of that name."""
    by_run, by_log = died(tmp_path, name)

    assert (by_run.cause, by_run.sub_cause, by_run.retry) == (cause, name, NAMES[name].retry)
    assert (by_log.cause, by_log.sub_cause, by_log.retry) == (cause, name, NAMES[name].retry)


@pytest.mark.parametrize("name", ["dead_data_worker", "nan_guard", "segmentation_fault", "unreachable_service"])
def test_an_end_that_is_got_over_is_none(tmp_path: Path, name: str) -> None:
    """The same in a program that goes on and ends well."""
    by_run, by_log = died(tmp_path, name, "alike")

    assert (by_run.cause, by_run.sub_cause) == ("finished", None)
    assert (by_log.cause, by_log.sub_cause) == (None, None)
