"""Drills on a GPU, on a machine without one: listed, and left out with a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.drills import DRILLS
from perfwatch.gauntlet.needs import NEEDS, _gpu, unmet

ON_A_CARD = [drill for drill in DRILLS if "gpu" in drill.needs]
NO_CARD = unmet(("gpu",)) is not None


def test_a_card_is_a_device_file(tmp_path: Path) -> None:
    """The control devices of the driver alone are no card."""
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    without = _gpu(tmp_path)
    (tmp_path / "nvidia3").touch()

    assert without == "needs an NVIDIA GPU: none is among the device files"
    assert _gpu(tmp_path) is None
    assert NEEDS["gpu"] is _gpu


def test_every_program_that_wants_a_card_says_so_in_the_catalogue(repository: Path) -> None:
    """A drill that asks torch for a card is never started where there is none."""
    programs = {
        path.name
        for path in (repository / "launcher" / "perfwatch" / "drills" / "programs").glob("*.py")
        if _wants(path)
    }

    assert programs == {drill.program for drill in ON_A_CARD}


@pytest.mark.live
@pytest.mark.skipif(not NO_CARD, reason="this machine has a GPU")
def test_without_a_card_the_check_says_so(repository: Path, tmp_path: Path) -> None:
    """One sentence, and the exit code of a usage error."""
    check = repository / "scripts" / "gpu_check.py"
    done = subprocess.run(
        [sys.executable, check, "-o", tmp_path / "results"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stderr.strip() == "needs an NVIDIA GPU: none is among the device files"


@pytest.mark.live
@pytest.mark.end_to_end
@pytest.mark.skipif(not NO_CARD, reason="this machine has a GPU")
def test_without_a_card_a_program_ends_with_a_sentence(repository: Path) -> None:
    """No traceback of torch's."""
    program = repository / "launcher" / "perfwatch" / "drills" / "programs" / "gpu_bound.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 1
    assert done.stderr.strip() == "this program trains on an NVIDIA GPU, and this Python's torch sees none"


def _wants(program: Path) -> bool:
    return program.name != "accelerator.py" and "accelerator.device(" in program.read_text()
