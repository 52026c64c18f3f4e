"""The rights that the systemd unit leaves to root's daemon are enough for its work."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGSTOP

import pytest

from tests.security.conftest import DEADLINE_SECONDS, Popen, User

pytestmark = pytest.mark.live


def test_the_capabilities_of_the_unit_are_enough_for_a_verdict_on_another_users_job(
    mallory: User, start_job: Callable[..., Popen], repository: Path, tmp_path: Path
) -> None:
    """A stopped job of another user is adopted and called hung under these rights alone."""
    text = (repository / "scripts" / "deploy" / "perfwatch.service").read_text()
    held = re.findall(r"CAP_(\w+)", re.search(r"^CapabilityBoundingSet=.*$", text, re.M)[0])  # type: ignore[index]
    kept = ",".join(f"+{name.lower()}" for name in held)
    job = start_job(mallory, environment={"SLURM_JOB_ID": "4711"})
    job.send_signal(SIGSTOP)
    log = tmp_path / "log"
    with log.open("w") as file:
        daemon = subprocess.Popen(
            ("setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set", f"-all,{kept}", sys.executable, "-m",
             "perfwatch", "daemon", "--directory", str(tmp_path / "home"), "--every", "0.2", "--patience", "1", "--user",
             str(mallory.uid), "--slurm-job", "4711"),
            stderr=file, text=True,
        )  # fmt: skip
    try:
        wait_for("verdict: hung", log)
        daemon.terminate()
        code = daemon.wait(DEADLINE_SECONDS)
    finally:
        daemon.kill()
        daemon.wait()

    assert code == 0
    assert f"pid {job.pid}: adopted" in log.read_text()
    assert "cannot be" not in log.read_text()


def wait_for(words: str, log: Path) -> None:
    """Wait until a log has these words; fails at the deadline."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while words not in log.read_text():
        assert time.monotonic() < ends, f"never heard {words!r}, but {log.read_text()}"
        time.sleep(0.05)
