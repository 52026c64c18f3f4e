"""``perfwatch headroom``: where a healthy run could be faster, and by how much."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfwatch.options import Argument, Json, Option, Seconds

if TYPE_CHECKING:
    from perfwatch.headroom.advice import Headroom


def headroom(
    target: Annotated[
        str | None,
        Argument(
            "[PID|SESSION|TRACE]",
            help="A process of a running job, a session, or a trace of torch.profiler; the only job by default, else the newest session.",
        ),
    ] = None,
    stacks_from: Annotated[
        Path | None,
        Option(metavar="TRACE", help="A second trace of the same run with Python stacks: for the lines alone."),
    ] = None,
    step_seconds: Annotated[
        float | None,
        Option(
            metavar="TIME", kind=Seconds(1e-6), help="Of a step without the profiler, where a trace alone is given."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what would make a healthy run faster.

    Where the time of a step goes, then at most three levers, the largest first: the evidence, how many times as fast a step
    would be, what it costs, and the change. Of a run that is slow, the cause comes first. A running job is asked for a torch
    window of five steps where it is armed (perfwatch run arms it); without a trace, counters and stacks name fewer levers.

    \b
    Examples:
      perfwatch headroom 4242
      perfwatch headroom                    the only job, or the newest session
      perfwatch headroom trace.json.gz --step-seconds 0.031
      perfwatch headroom SESSION --json | jq '.levers[] | {lever, times}'
    """
    from perfwatch.headroom.advice import as_json
    from perfwatch.report.console import console
    from perfwatch.report.headroom import HeadroomReport

    jobs = _jobs() if target is None else [int(target)] if target.isdecimal() else []
    if len(jobs) == 1:
        found = _of_job(jobs[0])
    elif target is not None and target.endswith((".json", ".json.gz")):
        found = _of_trace(Path(target), stacks_from, step_seconds)
    else:
        found = _of_session(target, len(jobs))
    if json:
        print(as_json(found))
    else:
        console(sys.stdout).print(HeadroomReport(found))


def _of_trace(path: Path, stacks_from: Path | None, step_seconds: float | None) -> "Headroom":
    from perfwatch.headroom.advice import advise
    from perfwatch.headroom.step import read

    stacks = read(stacks_from) if stacks_from is not None else None
    return advise(read(path, step_seconds), path, stacks)


def _jobs() -> list[int]:
    """The training jobs that run here; the only one is said to be meant."""
    from perfwatch.jobs.chosen import living
    from perfwatch.text import command_line, say
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem

    child = KillableChild()
    try:
        jobs = living(Filesystem(), child)
    finally:
        child.close()
    if len(jobs) == 1:
        say(
            sys.stderr, f"the only training job here is pid {jobs[0].tops[0].pid}: {command_line(jobs[0].command)[:80]}"
        )
    return [job.tops[0].pid for job in jobs]


def _of_session(target: str | None, jobs: int) -> "Headroom":
    """Of a session; one that was not named is said, with its age. jobs: that run here, where none was named."""
    from perfwatch.report.headroom import of_folder
    from perfwatch.report.moment import meant

    why = (
        f"{jobs} training jobs run here (for one: perfwatch headroom PID); " if jobs else "no training job runs here; "
    )
    folder = meant(target, "perfwatch headroom", why)
    return of_folder(folder)


def _of_job(pid: int) -> "Headroom":
    """A window of the job's own profiler where it is armed; else what can be seen from outside."""
    from perfwatch.attach.attached import Attached
    from perfwatch.captures.capture import Request
    from perfwatch.errors import CaptureFailed
    from perfwatch.processes.stop_signals import Leaving
    from perfwatch.report.headroom import of_folder
    from perfwatch.text import say
    from perfwatch.top import asking
    from perfwatch.watching.status_line import StatusLine

    request = Request(kind="torch", steps=5, pid=pid, ranks=(), options={"shapes": "yes"})
    control = asking.find(pid, None)
    if control is not None:
        outcome = asking.capture_watched(control, request, lambda text: say(sys.stderr, text))
        session = asking.session_of(control)
        folder = Path(session) if session is not None else None
    else:
        with Leaving() as leaving:
            attached = Attached(pid, leaving, needs_environment=f"perfwatch headroom {pid}")
            try:
                outcome = attached.capture(request, sys.stderr)
                attached.decide(sys.stderr, StatusLine(sys.stderr))
            finally:
                attached.close()
            folder = attached.folder
    trace = Path(outcome.files[0].path) if outcome.files else None
    if folder is not None:
        return of_folder(folder, trace, ": ".join(filter(None, (outcome.error, *outcome.advice.splitlines()[:1]))))
    if trace is not None:
        return _of_trace(trace, None, None)
    raise CaptureFailed(outcome.error, outcome.advice)
