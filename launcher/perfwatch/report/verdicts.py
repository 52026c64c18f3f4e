"""A verdict on a stream."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from perfwatch.verdict import Verdict

# Programs that a next step may name and that a machine may not have.
NOT_EVERYWHERE = frozenset("compute-sanitizer dmesg fuser iostat lspci nvidia-smi sacct ss taskset top".split())


def possible_here(verdict: Verdict, which: Callable[[str], str | None] = shutil.which) -> Verdict:
    """The verdict with the next steps last that need a program which this machine does not have, and with a word on that.

    Args:
        which: finds a program by its name.
    """
    here, lacking = [], []
    for step in verdict.next:
        programs = (part.split(maxsplit=1)[0] for part in re.split(r"[;|]", step) if part.strip())
        absent = [name for name in programs if name in NOT_EVERYWHERE and which(name) is None]
        if absent:
            lacking.append(f"{step} (not installed here: {', '.join(dict.fromkeys(absent))})")
        else:
            here.append(step)
    return msgspec.structs.replace(verdict, next=(*here, *lacking))


def print_verdict(verdict: Verdict, stream: IO[str], folder: Path | None = None) -> None:
    """Print the one-screen report; where the recording lies comes last."""
    from perfwatch.report.console import console
    from perfwatch.report.terminal import VerdictReport

    out = console(stream)
    out.print(VerdictReport(verdict))
    if folder is not None:
        out.print(f"recorded in {folder}", markup=False, highlight=False, soft_wrap=True)
