"""One session of nsys for the whole job, or one sentence that says why the job starts without it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.captures.nsight import nsys_session
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.armed import read_armed
from perfwatch.processes.programs import run_program
from perfwatch_probes.agent_folder import AgentFolder

pytestmark = pytest.mark.live


def program(path: Path, text: str) -> Path:
    """A shell script in the place of nsys."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("exit 1", {}, "does not work"),
        ("case $1 in --version) echo version 2019.1.0;; *) echo '  --trace=';; esac", {}, "too old: its launch has no --session-new"),
        (
            "case $1 in --version) echo version 2025.1.0;; launch) case $2 in --help) printf '  --trace=\\n  --session-new=\\n';;"
            " *) echo cannot create a session >&2; exit 3;; esac;; esac",
            {},
            "ended with 3: cannot create a session",
        ),
        ("exit 0", {"CUDA_INJECTION64_PATH": "/opt/tool.so"}, "CUDA_INJECTION64_PATH is set"),
    ],
)  # fmt: skip
def test_what_cannot_be_armed_says_why(tmp_path: Path, text: str, environment: dict[str, str], says: str) -> None:
    """Broken, too old, refusing, or another tool is there first; the caller starts the job without it."""
    nsys_program = program(tmp_path / "nsys", text)

    with pytest.raises(CaptureUnavailable, match=says):
        nsys_session.arm(
            {"PERFWATCH_NSYS": str(nsys_program), "PATH": os.environ["PATH"], **environment}, tmp_path, run_program
        )


LAUNCHES = """case $1 in --version) echo version 2025.1.0;; launch)
case $2 in --help) printf '  --trace=\\n  --session-new=\\n';; *) shift 3; CUDA_INJECTION64_PATH=/nsys.so exec "$@";; esac;; esac
"""


def test_a_session_that_does_not_come_up_is_shut_down_and_tried_once_more(tmp_path: Path) -> None:
    """Nsys' agent fails now and then; its session may be there all the same, and would stay."""
    asked = tmp_path / "asked"
    fails_once = LAUNCHES.replace("*) shift 3;", f"*) [ -e {asked} ] || {{ echo $3 > {asked}; exit 1; }}; shift 3;")
    shut = tmp_path / "shut"
    text = fails_once.replace("launch)", f"shutdown) echo $2 >> {shut};; launch)", 1)
    stop = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    environment = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", text)), "PATH": os.environ["PATH"]}

    given = nsys_session.arm(environment, tmp_path, run_program, launcher=stop.pid)
    stop.communicate()

    assert given["CUDA_INJECTION64_PATH"] == "/nsys.so"
    (session,) = shut.read_text().splitlines()
    assert session.startswith("--session=perfwatch-nsys-")
    assert session != f"--session={read_armed(AgentFolder(tmp_path))['nsys']['session']}"


def test_one_launcher_for_each_rank_makes_one_session_for_all(tmp_path: Path) -> None:
    """The second joins that of the first; where the first failed, the second is told at once."""
    stop = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    environment = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", LAUNCHES)), "PATH": os.environ["PATH"]}
    first = nsys_session.arm(environment, tmp_path, run_program, launcher=stop.pid)
    facts = read_armed(AgentFolder(tmp_path))["nsys"]
    second = nsys_session.arm(environment, tmp_path, run_program)

    assert first["CUDA_INJECTION64_PATH"] == second["CUDA_INJECTION64_PATH"] == "/nsys.so"
    assert read_armed(AgentFolder(tmp_path))["nsys"] == facts
    stop.communicate()

    failing = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", "exit 1"))}
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CaptureUnavailable, match="does not work"):
        nsys_session.arm(failing, other, run_program)
    assert list(other.iterdir()) == []


@pytest.mark.end_to_end
def test_run_starts_the_job_although_nsys_cannot_be_had(tmp_path: Path) -> None:
    """One sentence on stderr; its exit code stays its own."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "run", "--arm", "nsys", "--", "sh", "-c", "echo ran; exit 3"],
        env={**os.environ, "PERFWATCH_NSYS": str(program(tmp_path / "nsys", "exit 9")), "PERFWATCH_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "not armed with nsys" in done.stderr
    assert "the job runs without" in done.stderr
