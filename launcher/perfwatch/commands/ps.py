"""``perfwatch ps``: the training jobs of this machine."""

import sys
from typing import Annotated

from perfwatch.options import Json, Option


def ps(
    judge: Annotated[bool, Option("--judge", help="Judge each job that has no watcher: 5 s of samples each.")] = False,
    ranks: Annotated[bool, Option("--ranks", "-r", help="Show each rank, and the most silent worker.")] = False,
    json: Json = False,
) -> None:
    """List the training jobs of this machine, the worst first.

    A job is a tree of processes with torch loaded. VERDICT is what its watcher says (perfwatch run, daemon or attach
    --watch of your own), SILENT FOR how long it has not moved, as far as that is known without a verdict. Workers that
    outlived their job are shown as ORPHANED, processes whose parent has not reaped them as ZOMBIE.

    \b
    Examples:
      perfwatch ps
      perfwatch ps --judge
      perfwatch ps --json | jq '.jobs[] | {pid, verdict}'
    """
    from perfwatch.jobs.discovery import list_jobs
    from perfwatch.jobs.known import Knowledge
    from perfwatch_probes.cpu_clock import CpuClocks
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem
    from perfwatch_probes.guest import Guests

    child, guests = KillableChild(), Guests()
    try:
        listing = list_jobs(Filesystem(), child, CpuClocks(child), Knowledge(guests).of)
    finally:
        guests.close()
    if judge:
        from perfwatch.attach.judging import judged

        listing = judged(listing, sys.stderr)
    if json:
        from perfwatch.text import json_text

        print(json_text(listing))
        return
    from perfwatch.report.console import LIST_COLUMNS, console
    from perfwatch.report.jobs import JobsReport

    console(sys.stdout, LIST_COLUMNS).print(JobsReport(listing, ranks, judge))
