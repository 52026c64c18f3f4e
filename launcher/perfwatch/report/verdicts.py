"""A verdict on a stream."""

from pathlib import Path
from typing import IO

from perfwatch.verdict import Verdict


def print_verdict(verdict: Verdict, stream: IO[str], folder: Path | None = None) -> None:
    """Print the one-screen report; where the recording lies comes last."""
    from perfwatch.report.console import console
    from perfwatch.report.terminal import VerdictReport

    out = console(stream)
    out.print(VerdictReport(verdict))
    if folder is not None:
        out.print(f"recorded in {folder}", markup=False, highlight=False, soft_wrap=True)
