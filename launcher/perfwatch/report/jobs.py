"""The list of jobs on a terminal: a line for each job, the worst first, and below it what is unusual about its processes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.jobs.discovery import WORST_FIRST, ListedJob, ListedProcess, Listing
from perfwatch.jobs.permission import user_name
from perfwatch.processes.reinvoke import as_typed_here
from perfwatch.report.console import Row, list_table
from perfwatch.text import clean, command_line, duration

RUNS_SECONDS = 0.5  # a rank that trains runs again within this
MOST_REASONS = 8  # jobs that are not well
MOST_RANKS = 8  # of one job; the most silent ones, for they are what the list is for
STATES = {"R": "runs", "S": "sleeps", "D": "blocked (D)", "T": "stopped", "t": "traced", "Z": "zombie", None: "unknown"}
UNUSUAL = ("D", "T", "t", "Z")
STYLES = {"hung": "bold red", "gone": "red", "slow": "yellow", "inconclusive": "magenta", "healthy": "green"}
COLUMNS = ("PID", "USER", "RANKS", "GPUS", "STEP", "VERDICT", "SILENT FOR", "COMMAND")
SPARE = ("STEP", "GPUS", "USER", "RANKS", "SILENT FOR")  # in a narrow terminal


@dataclass(frozen=True)
class JobsReport:
    """A listing, ready to be printed.

    Attributes:
        listing: what was found.
        ranks: True if every rank is shown, and the most silent worker.
        judged: True if each job was to be judged.
    """

    listing: Listing
    ranks: bool = False
    judged: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, then what to type next and what could not be seen."""
        jobs = sorted(self.listing.jobs, key=_badness)
        if jobs or self.listing.zombies:
            commands = Counter(job.command for job in jobs)
            rows = [row for job in jobs for row in _rows(job, self.ranks, commands[job.command] > 1)]
            for zombie in self.listing.zombies:
                why = f"has ended; its parent {clean(zombie.parent)} ({zombie.parent_pid}) has not reaped it"
                rows.append((str(zombie.pid), user_name(zombie.uid), "", "", "", Text("ZOMBIE", style="dim"), "", why))
            table = list_table(COLUMNS, rows, SPARE, options.max_width)
            if console.is_terminal:
                yield table
            else:  # in a pipe blanks up to the edge are of no use
                for line in console.render_lines(table, options, pad=False):
                    yield Text("".join(segment.text for segment in line).rstrip())
        yield from (Text(line) for line in _reasons(jobs))
        yield from (Text(line, style="dim") for line in _advice(jobs, self.judged))
        hidden = self.listing.hidden
        if not jobs and not hidden:
            yield Text("no training job runs on this machine: no Python process has torch loaded")
        if hidden:
            what = "process" if hidden == 1 else "processes"
            yield Text(as_typed_here(f"{hidden} Python {what} of other users: sudo perfwatch ps"), style="yellow")


def _reasons(jobs: list[ListedJob]) -> Iterator[str]:
    """Of each job that is not well: which process, at which line."""
    for job in [one for one in jobs if _is_unwell(one)][:MOST_REASONS]:
        if job.verdict is not None and job.verdict.summary:
            soon = job.verdict.suspect_in_seconds
            decides = f" (decides in {duration(soon)})" if soon else ""
            yield clean(f"pid {job.pid}: {job.verdict.summary}{decides}")


def _is_unwell(job: ListedJob) -> bool:
    return job.kind == "job" and job.verdict is not None and job.verdict.state not in ("healthy", "busy")


def _advice(jobs: list[ListedJob], judged: bool) -> Iterator[str]:
    """What to type next."""
    living = [job for job in jobs if job.kind == "job"]
    if living and _is_unwell(living[0]):
        yield f"why: perfwatch attach {living[0].pid}"
    unjudged = [job.pid for job in living if job.verdict is None]
    if unjudged and judged:
        yield f"not judged in time: perfwatch attach {unjudged[0]}"
    elif unjudged:
        yield "a verdict for each: perfwatch ps --judge; for one: perfwatch attach PID"


def _badness(job: ListedJob) -> tuple[int, int, float]:
    """Orders jobs: the worst verdict first; of those without one the most silent first; orphans last."""
    state = job.verdict.state if job.verdict is not None else "inconclusive"
    place = WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)
    return int(job.kind != "job"), place, -(silent_seconds(job) or 0.0)


def silent_seconds(job: ListedJob) -> float | None:
    """For how long a job has been silent: what its watcher says, else how long its most silent rank has not run.

    A rank that waits for a worker wakes every 5 s to see whether it lives. So where no rank has run just now, a job is as silent
    as the least silent of its workers: those of a loader that is not needed now are silent in a healthy job.
    """
    if job.verdict is not None and job.verdict.silent_seconds is not None:
        return job.verdict.silent_seconds
    ranks, workers = (
        [one.ran_ago_seconds for one in some if one.ran_ago_seconds is not None] for some in (job.ranks, job.workers)
    )
    silence = max(ranks, default=None)
    if silence is not None and silence >= RUNS_SECONDS and workers:
        return max(silence, min(workers))
    return silence


def _verdict(job: ListedJob) -> Text:
    if job.kind == "orphan":
        return Text("ORPHANED", style="bold red")
    if job.verdict is None:
        return Text("watched" if job.watched_by else "not judged", style="dim")
    state, cause = job.verdict.state, job.verdict.cause
    said = state.upper() if cause is None or cause == state else f"{state.upper()} {cause}"
    if job.verdict.suspect is not None:
        suspected, why = job.verdict.suspect
        said = f"{suspected.upper()}? {why}"
    return Text(clean(said), style=STYLES.get(state, ""))


def _rows(job: ListedJob, ranks: bool, ambiguous: bool) -> Iterator[Row]:
    """ambiguous: True if another job has the same command line: the working directory tells them apart."""
    where = f"in {clean(job.working_directory)}: " if ambiguous and job.working_directory else ""
    count = f"{len(job.ranks)}/{job.world_size}" if job.world_size else str(len(job.ranks))
    silent = silent_seconds(job)
    step = job.step if job.step is not None else job.verdict.last_step if job.verdict is not None else None
    yield (
        str(job.pid),
        user_name(job.uid),
        count,
        numbers(job.gpus) or "-",
        "-" if step is None else f"{step:,}",
        _verdict(job),
        "-" if silent is None else duration(silent),
        _orphan(job) if job.kind == "orphan" else f"{where}{command_line(job.command)}",
    )
    sick = [one for one in (*job.ranks, *job.workers) if one.state in UNUSUAL]
    shown = [*_most_silent(job.ranks, MOST_RANKS), *_most_silent(job.workers, 1)] if ranks else []
    for one in sorted({one.pid: one for one in (*shown, *sick[:MOST_RANKS])}.values(), key=_order):
        yield _row(one, "worker" in one.role or job.kind == "orphan")
    left = len(job.ranks) - MOST_RANKS
    if ranks and left > 0:
        yield "", "", "", "", "", "", "", f"and {left} more ranks that ran since"


def _order(one: ListedProcess) -> tuple[bool, int, int]:
    return "worker" in one.role, one.rank or 0, one.pid


def _row(one: ListedProcess, worker: bool) -> Row:
    if one.rank is not None:
        role = f"worker of rank {one.rank}" if worker else f"rank {one.rank}"
    else:
        role = "worker" if worker else "training process"
    if one.state == "Z":
        role = f"{role} that has ended; its parent has not reaped it"
    state = Text(STATES.get(one.state, one.state or ""), style="bold red" if one.state in UNUSUAL else "")
    return f"  {one.pid}", "", "", "", "", state, duration(one.ran_ago_seconds), role


def _orphan(job: ListedJob) -> str:
    """What an orphan is and holds, and how to end it."""
    held = [f"{(job.memory_bytes or 0) / 2**30:.1f} GiB of memory"] if job.memory_bytes else []
    held += [f"GPU {numbers(job.gpus)}"] if job.gpus else []
    holds = f"; holds {' and '.join(held)}" if held else ""
    return f"DataLoader worker whose training process has ended{holds}; if nothing needs it, end it: kill {job.pid}"


def numbers(cards: tuple[int, ...]) -> str:
    """``0-3,6``."""
    runs: list[list[int]] = []
    for card in sorted(cards):
        if runs and card == runs[-1][1] + 1:
            runs[-1][1] = card
        else:
            runs.append([card, card])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _most_silent(processes: tuple[ListedProcess, ...], count: int) -> list[ListedProcess]:
    return sorted(processes, key=lambda one: one.ran_ago_seconds or 0.0, reverse=True)[:count]
