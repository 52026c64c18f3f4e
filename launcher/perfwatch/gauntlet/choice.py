"""Which drills to run and under which conditions, from the command line. A mistake is a UsageError with the fix."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfwatch.drills import DRILLS
from perfwatch.drills.drill import STRENGTHS, Drill
from perfwatch.errors import UsageError, install_command
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.needs import unmet

TORCH_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@dataclass(frozen=True)
class Choice:
    """What to run: drills whose needs are met, the strengths asked for (empty: all), and why others are left out."""

    drills: tuple[Drill, ...]
    strengths: tuple[str, ...]
    skipped: dict[str, str]


def choose(names: Sequence[str], strengths: Sequence[str]) -> Choice:
    """Find drills by their own name or by the cause that they show; no name means all of them."""
    found: dict[str, Drill] = {}
    for name in names:
        exact = [drill for drill in DRILLS if drill.name == name]
        by_cause = [drill for drill in DRILLS if name in drill.causes[:1]]
        if not (matching := exact or by_cause):
            raise UsageError(f"no drill is called {name!r}, and none shows that cause", "perfwatch drill lists them")
        found.update((drill.name, drill) for drill in matching)
    for strength in strengths:
        if strength not in STRENGTHS:
            raise UsageError(f"--strength is one of {', '.join(STRENGTHS)}, not {strength!r}")
    candidates = tuple(found.values()) if names else DRILLS
    reasons = {drill.name: reason for drill in candidates if (reason := unmet(drill.needs)) is not None}
    return Choice(tuple(drill for drill in candidates if drill.name not in reasons), tuple(strengths), reasons)


@contextlib.contextmanager
def conditions(
    output: Path | None, python: str, mode: str, late_seconds: float, patience_seconds: float | None
) -> Iterator[Conditions]:
    """Make the folder for rows and sessions; without ``output`` it is a temporary one and goes again."""
    if mode not in ("attach", "run"):
        raise UsageError(f"--mode is attach or run, not {mode!r}")
    if shutil.which(python) is None or subprocess.run([python, "-c", TORCH_THERE], check=False).returncode != 0:
        raise UsageError(
            f"{python} has no torch, and the drills are real training programs",
            f"perfwatch drill --python /path/to/python-with-torch   (or: {install_command('torch', 'numpy')})",
        )
    folder = output or Path(tempfile.mkdtemp(prefix="perfwatch-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    limit_seconds = 120.0 + max(60.0, patience_seconds or 0.0)
    try:
        yield Conditions(
            folder=folder.absolute(),
            python=python,
            mode=mode,
            late_seconds=late_seconds,
            patience_seconds=patience_seconds,
            limit_seconds=limit_seconds,
        )
    finally:
        if output is None:
            shutil.rmtree(folder, ignore_errors=True)
