"""``perfwatch fleet --slurm`` on a real Slurm: one overlapping step, an answer from each node, one verdict."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import PATIENCE_SECONDS, until
from tests.fleet.slurm import cluster, submit, why_not

pytestmark = pytest.mark.live

FAKE = Path(__file__).parent / "fake_host.py"


@pytest.fixture
def allocation() -> Iterator[tuple[dict[str, str], str]]:
    """A job that runs on two nodes and has taken all of their CPUs: how to find it, and its number."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as names:
        if names is None:
            pytest.skip("Slurm's daemons do not come up on this machine")
        job = submit(names, "--nodes=2", "--wrap=srun sleep 600")

        def steps() -> int:
            show = ["squeue", "--steps", "-h", "-j", job, "-o", "%i"]
            return subprocess.run(show, env=names, check=True, capture_output=True, text=True).stdout.count(f"{job}.0")

        until(lambda: steps() > 0)
        yield names, job
        subprocess.run(["scancel", job], env=names, check=False)


def test_every_node_of_the_job_answers_beside_the_running_step(
    allocation: tuple[dict[str, str], str], tmp_path: Path
) -> None:
    """Answers of hundreds of lines each come through one srun, and the stuck rank is named on its node."""
    code, said = fleet(allocation, tmp_path, {"node-a": "0", "node-b": "1"})

    assert code == 30, said
    assert {one["host"]: (one["state"], one["ranks"]) for one in said["hosts"]} == {
        "node-a": ("answered", list(range(8))),
        "node-b": ("answered", list(range(8, 16))),
    }
    assert [(one["rank"], one["host"]) for one in said["verdict"]["culprits"]] == [(9, "node-b")]


def test_what_perfwatch_says_on_a_node_that_fails_is_the_reason(
    allocation: tuple[dict[str, str], str], tmp_path: Path
) -> None:
    """And not what srun closes with, the exit code of a task; the other node is heard."""
    _, said = fleet(allocation, tmp_path, {"node-a": "0", "node-b": "broken"})

    assert {one["host"]: (one["state"], one["reason"]) for one in said["hosts"]} == {
        "node-a": ("answered", ""),
        "node-b": ("failed", "perfwatch: PermissionError: /var/tmp"),
    }


def fleet(allocation: tuple[dict[str, str], str], folder: Path, nodes: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Run the command as a user would: its exit code and its JSON. ``nodes``: what each does."""
    names, job = allocation
    does = folder / "does"
    does.write_text(json.dumps(nodes))
    command = [sys.executable, "-m", "perfwatch", "fleet", "--json", "--slurm", job]
    command += ["--command", f"{sys.executable} {FAKE} {does}", "--job", "run-7"]
    done = subprocess.run(
        command,
        env={**names, "PERFWATCH_DIR": str(folder / "sessions")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
