"""A short day of watching: the real loop beside a simulated job and clock. ``scripts/soak`` does the long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

SHORT = ("--hours", "0.55", "--ranks", "1", "--cards", "0", "--epoch", "30", "--stand-every", "600")


def test_memory_is_flat_and_the_disk_budget_holds(repository: Path) -> None:
    """Half an hour with a hundred and thirty dead workers, hangs and their ends, in a budget that is too small for all of it."""
    command = (
        sys.executable,
        str(repository / "scripts" / "soak.py"),
        *SHORT,
        "--budget",
        "1",
        "--flat",
        "1.5",
        "--json",
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(done.stdout)

    # A budget that the half hour exceeds: what tests/test_segments.py proves of the black box cannot hold here.
    assert [said for said in report["failures"] if "last half hour" not in said] == [], done.stderr
    assert report["processes_seen"] > 100
    assert report["told"]["hung"] >= 2
    assert report["told"]["healthy"] >= 2  # it was told that the job moves again
    assert report["largest_bytes"] <= 2**20
