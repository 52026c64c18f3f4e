"""``capture ncu`` finds the rank below ncu, its shell script and the process that passes signals on; or ncu comes to the rank.

A script stands for ncu.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures.test_torch_live import ALONE, start
from tests.nsight.attachable import attachable_ncu, built_library

pytestmark = pytest.mark.live

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

HELP = Path(__file__).parents[1] / "nsight" / "ncu_2025.3_help.txt"
NCU = f"""#!/bin/sh
case "$1" in
--version) echo "NVIDIA (R) Nsight Compute Command Line Profiler"; echo "Version 2025.3.1.0 (build 1)"; exit 0 ;;
--help) cat {HELP}; exit 0 ;;
esac
while [ "$1" != sh ]; do shift; done
"$@"
"""


def test_the_window_opens_in_the_rank_below_ncu(tmp_path: Path) -> None:
    """And not in what stands above it, which makes no steps."""
    fake, fifo = tmp_path / "ncu", tmp_path / "fifo"
    fake.write_text(NCU)
    fake.chmod(0o755)
    os.mkfifo(fifo)
    job = ("sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE))
    run = (sys.executable, "-m", "perfwatch", "run", "--arm", "ncu", "--session", str(tmp_path / "s"), "--", *job)
    with start(tmp_path, fifo, *run, PERFWATCH_NCU=str(fake)) as running:
        assert running.line() == "training"
        asked = (sys.executable, "-m", "perfwatch", "capture", "ncu", "--session", str(tmp_path / "s"))
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)

        assert done.returncode == 0, done.stderr
        assert "a step took" in done.stdout
        assert running.end() == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to make a library with")
def test_ncu_comes_to_the_rank_and_leaves(tmp_path: Path) -> None:
    """Two windows, each of one step; the job goes on in between and ends by itself."""
    built_library(tmp_path)
    fifo, standin = tmp_path / "fifo", tmp_path / "said"
    os.mkfifo(fifo)
    job = ("sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE))
    run = (
        sys.executable,
        "-m",
        "perfwatch",
        "run",
        "--arm",
        "ncu-attach",
        "--session",
        str(tmp_path / "s"),
        "--",
        *job,
    )
    variables = {"PERFWATCH_NCU": str(attachable_ncu(tmp_path)), "STANDIN": str(standin)}
    with start(tmp_path, fifo, *run, **variables) as running:
        assert running.line() == "training"
        for window in (1, 2):
            standin.write_text("")
            asked = (sys.executable, "-m", "perfwatch", "capture", "ncu", "--session", str(tmp_path / "s"))
            done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)

            assert done.returncode == 0, (window, done.stderr)
            assert standin.read_text().split() == ["begin", "16", "end", "16"]
            assert "1 kernel was measured" in done.stdout
            assert "gemm" in done.stdout
        assert running.end() == 0
    assert "has not been tried with a real ncu" in running.errors.read_text()
