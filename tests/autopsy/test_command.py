"""The command, as a user types it: real files, a real child that reads them, a real session."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.autopsy.test_logs import KEY_ERROR, STEPS
from tests.probes.flight_dumps import Bomb, waiting

pytestmark = pytest.mark.live


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
