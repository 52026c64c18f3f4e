"""A job under ncu gets the signals that are meant for it, and its exit code comes back."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.captures.nsight import under_ncu

pytestmark = pytest.mark.live

JOB = (
    "import signal, sys, time\n"
    "signal.signal(signal.{name}, lambda *_: (print('tidied', flush=True), sys.exit(7)))\n"
    "print('ready', flush=True)\n"
    "while True: time.sleep(0.05)\n"
)


def ncu(folder: Path) -> str:
    """A script around a program of the same name, as NVIDIA ships it: neither becomes the job, both end as it ends."""
    real = folder / "real" / "ncu"
    real.parent.mkdir()
    for path, runs in ((real, '"$@"'), (folder / "ncu", f'{real} "$@"')):
        path.write_text(f"#!/bin/sh\n{runs}\nexit $?\n")
        path.chmod(0o755)
    return str(folder / "ncu")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_reaches_the_job_and_not_the_script(tmp_path: Path, name: str) -> None:
    """It tidies up, and how it ended is what is seen."""
    job = subprocess.Popen(
        [sys.executable, "-I", under_ncu.__file__, ncu(tmp_path), sys.executable, "-c", JOB.format(name=name)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    job.send_signal(getattr(signal, name))

    assert job.communicate(timeout=30)[0] == "tidied\n"
    assert job.returncode == 7


def test_an_exit_code_and_a_death_by_signal_are_passed_on(tmp_path: Path) -> None:
    """Of ncu itself, where it crashes."""
    command = [sys.executable, "-I", under_ncu.__file__]

    assert subprocess.run([*command, ncu(tmp_path), "sh", "-c", "exit 5"], timeout=30).returncode == 5
    assert subprocess.run([*command, "sh", "-c", "kill -ABRT $$"], timeout=30).returncode == -signal.SIGABRT
