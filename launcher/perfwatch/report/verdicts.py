"""A verdict on a stream."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from perfwatch.processes.reinvoke import as_typed_here
from perfwatch.verdict import Verdict

# Programs that a next step may name and that a machine may not have.
NOT_EVERYWHERE = frozenset("compute-sanitizer dmesg fuser iostat lspci nvidia-smi sacct ss taskset top".split())


def possible_here(verdict: Verdict, which: Callable[[str], str | None] = shutil.which) -> Verdict:
    """The verdict with its commands as they are typed here; last the next steps that need a program which this machine does not have.

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
    steps = tuple(as_typed_here(step, which) for step in (*here, *lacking))
    missing = tuple(msgspec.structs.replace(one, advice=as_typed_here(one.advice, which)) for one in verdict.missing)
    return msgspec.structs.replace(verdict, next=steps, missing=missing)


def print_verdict(verdict: Verdict, stream: IO[str], folder: Path | None = None) -> None:
    """Print the one-screen report; where the recording lies comes last."""
    from perfwatch.report.console import console
    from perfwatch.report.terminal import VerdictReport

    out = console(stream)
    out.print(VerdictReport(verdict))
    if folder is not None:
        out.print(f"recorded in {folder}", markup=False, highlight=False, soft_wrap=True)
