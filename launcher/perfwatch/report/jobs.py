"""The list of jobs on a terminal: a line for each job, its ranks below it, and the most silent of its workers."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from perfwatch.jobs.discovery import ListedJob, ListedProcess, Listing
from perfwatch.text import clean, duration

MOST_RANKS = 8  # of one job; the most silent ones, for they are why somebody looks
STATES = {"R": "runs", "S": "sleeps", "D": "blocked (D)", "T": "stopped", "t": "traced", "Z": "zombie", None: "unknown"}


@dataclass(frozen=True)
class JobsReport:
    """A listing, ready to be printed."""

    listing: Listing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, then what to type next and what could not be seen."""
        jobs = self.listing.jobs
        if jobs:
            table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            table.add_column("PID", no_wrap=True)
            table.add_column("WHAT", no_wrap=True)
            table.add_column("MAIN THREAD", no_wrap=True)
            table.add_column("SILENT FOR", no_wrap=True)
            table.add_column("AGE", no_wrap=True)
            table.add_column("COMMAND", ratio=1, min_width=12, overflow="ellipsis", no_wrap=True)
            for job in jobs:
                _add(table, job)
            if console.is_terminal:
                yield table
            else:  # whoever reads a pipe has no use for blanks up to its edge
                for line in console.render_lines(table, options, pad=False):
                    yield Text("".join(segment.text for segment in line).rstrip())
            yield Text(f"say why one is stuck: perfwatch attach {max(jobs, key=_silence).pid}", style="dim")
        else:
            yield Text("No process with torch loaded was found on this machine.")
        if self.listing.hidden:
            yield Text("Python processes that may not be looked into: ", style="yellow", end="")
            yield Text(f"{self.listing.hidden} (sudo $(command -v perfwatch) ps)", style="yellow")


def _silence(job: ListedJob) -> float:
    """For how long its most silent rank has not run."""
    return max((rank.ran_ago_seconds or 0.0 for rank in job.ranks), default=0.0)


def _add(table: Table, job: ListedJob) -> None:
    count = f"{len(job.ranks)}/{job.world_size} ranks" if job.world_size else f"{len(job.ranks)} ranks"
    count += f", {len(job.workers)} workers" if job.workers else ""
    # At a glance the program matters, not where its interpreter is installed.
    command = clean(" ".join([*(os.path.basename(word) for word in job.command[:2]), *job.command[2:]]))
    age = duration(job.age_seconds)
    if [rank.pid for rank in job.ranks] == [job.pid]:
        _add_process(table, job.ranks[0], "job", 0, age, command)
    else:
        table.add_row(str(job.pid), count, "", "", age, command)
        for rank in sorted(_most_silent(job.ranks, MOST_RANKS), key=lambda one: (one.rank or 0, one.pid)):
            _add_process(table, rank, "rank" if rank.rank is None else f"rank {rank.rank}", 1)
        if len(job.ranks) > MOST_RANKS:
            table.add_row("", f"and {len(job.ranks) - MOST_RANKS} more ranks that ran since", "", "", "", "")
    for worker in _most_silent(job.workers, 1):
        of = "" if worker.rank is None else f" of rank {worker.rank}"
        _add_process(table, worker, f"worker{of}", 1)


def _add_process(table: Table, one: ListedProcess, what: str, depth: int, age: str = "", command: str = "") -> None:
    style = "bold red" if one.state in ("T", "t", "D", "Z") else ""
    table.add_row(
        "  " * depth + str(one.pid),
        what,
        Text(STATES.get(one.state, one.state or ""), style=style),
        duration(one.ran_ago_seconds),
        age,
        command,
    )


def _most_silent(processes: tuple[ListedProcess, ...], count: int) -> list[ListedProcess]:
    return sorted(processes, key=lambda one: one.ran_ago_seconds or 0.0, reverse=True)[:count]
