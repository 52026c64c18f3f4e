"""``perfwatch ps``: the training jobs of this machine."""

import sys
from typing import Annotated

import typer


def ps(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
) -> None:
    """List the training jobs of this machine.

    A job is a tree of processes with torch loaded: its ranks, its workers, and how long since each last ran. A rank
    that sleeps is not sick by itself: perfwatch attach PID says why.

    \b
    Examples:
      perfwatch ps
      perfwatch ps --json | jq '.jobs[].pid'
    """
    from perfwatch.jobs.discovery import list_jobs
    from perfwatch_probes.cpu_clock import CpuClocks
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem

    child = KillableChild()
    listing = list_jobs(Filesystem(), child, CpuClocks(child))
    if json:
        import msgspec

        print(msgspec.json.encode(listing).decode())
        return
    from perfwatch.report.console import LIST_COLUMNS, console
    from perfwatch.report.jobs import JobsReport

    console(sys.stdout, LIST_COLUMNS).print(JobsReport(listing))
