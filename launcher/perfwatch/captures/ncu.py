"""``capture ncu``: the kernels of a few steps of one rank, measured by Nsight Compute, on a job that ``run --arm ncu`` started.

The agent opens the window (cudaProfilerStart) at the end of a step and closes it at the end of a later one; in between
every kernel runs several times over, so these steps are slow, and the other ranks wait. A job that was started with
``run --arm ncu-attach`` is measured in ``ncu_attached``; one that was not started for ncu cannot be measured by it.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures import ncu_attached
from perfwatch.captures.capture import COUNTERS, CUPTI, Collected, Request, Scene, Subject, Window
from perfwatch.captures.ncu_files import NAME as REPORT
from perfwatch.captures.ncu_files import brought, last_error, log_text, measured
from perfwatch.captures.nsight.finding import Tool, armed_tool, find, options
from perfwatch.captures.nsight.ncu_command import WARNING, can_attach
from perfwatch.captures.nsight.permission import refused
from perfwatch.captures.pace import Pacer
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable, PerfwatchError
from perfwatch.processes.programs import run_program
from perfwatch.text import duration

NAME = "ncu"
SUMMARY = "Nsight Compute: what each kernel of a step did to the card, as a kernel table"
DISTURBS = WARNING
USES = frozenset({CUPTI, COUNTERS})
TRIGGERED_BY = "kernels"
OPTIONS: Mapping[str, str] = {}

STEPS = 1
MOST_STEPS = 20
WINDOW_SECONDS = 120.0  # 330 kernels take some seconds; a step of 100,000 does not end here
_LOOK_SECONDS = 0.2
_SECOND_RUN = (
    "measure a second run: perfwatch ncu -- COMMAND; or start the job with: perfwatch run --arm ncu -- COMMAND"
)


def belongs_to_the_user(scene: Scene) -> bool:
    """ncu runs as part of the job, and the door to the window is a file of the job's user."""
    return True


def available(request: Request, scene: Scene) -> None:
    """Armed, stepping, one rank, and not hung: a kernel that waits would be waited for."""
    if NAME not in scene.armed:
        raise CaptureUnavailable(f"this job was not started under ncu{_attaching(scene)}", _SECOND_RUN)
    if scene.may_be_hung:
        raise CaptureRefused("the job hangs, or may: no step would end the window", "perfwatch capture stacks")
    if request.steps is not None and request.steps > MOST_STEPS:
        raise CaptureRefused(f"--steps is too large: {MOST_STEPS} at most", "--steps 1 shows the same")
    _subject(request, scene)


def estimated_bytes(request: Request, scene: Scene) -> int:
    """100 kB a kernel, for its code comes along: 77 MB for 806 of them."""
    return 128 * 2**20


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """None: ncu runs since the job began."""
    return ()


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Ask the agent to open the window, wait for the steps, have it closed, and bring the report if ncu has written it."""
    facts = scene.armed[NAME]
    tool = armed_tool(NAME, facts, scene.environment, window.run)
    subject = _subject(request, scene)
    assert scene.place is not None
    door = scene.place.path / f"kernels-{subject.pid}"
    steps = request.steps or STEPS
    pacer = Pacer(scene.place, (subject,), window.clock)
    if subject.pid not in pacer.look().counts:
        raise CaptureFailed(f"pid {subject.pid} has made no optimizer step, and the window opens at one", _SECOND_RUN)
    if facts.get("attaches"):
        return ncu_attached.collect(tool, subject, scene.place.path, steps, window)
    log = Path(facts.get("log", ""))
    before = len(log_text(log))
    began = window.clock()
    try:
        door.touch(mode=0o600)
        # The range opens at the end of the next step, and closes at the end of the one that no longer finds the door.
        first = _step_after(pacer, subject, 1, window, began)
        window.opened()
        _step_after(pacer, subject, steps - 1, window, began, first)
    finally:
        with contextlib.suppress(OSError):
            door.unlink()
    _step_after(pacer, subject, steps, window, began, first)
    window.closed()
    said = log_text(log)[before:]
    if denied := refused(said):
        raise denied
    if error := last_error(said):
        raise CaptureFailed(f"ncu measured nothing in the window: {error}", _SECOND_RUN)
    report = Path(facts.get("report", ""))
    return _collected(tool, report, window, subject, measured(said), window.clock() - began, request.most_bytes)


def _collected(
    tool: Tool, report: Path, window: Window, subject: Subject, notes: tuple[str, ...], seconds: float, most_bytes: int
) -> Collected:
    if not report.is_file() or report.stat().st_size > most_bytes:
        later = f"ncu writes its report when the job ends: then perfwatch kernels {report}"
        return Collected((), seconds, (*notes, later))
    target = window.folder / REPORT
    target.write_bytes(report.read_bytes())
    return brought(target, tool, subject, window, seconds, notes)


def _step_after(
    pacer: Pacer, subject: Subject, steps: int, window: Window, began: float, since: int | None = None
) -> int:
    """Wait until so many more steps are made; the count then."""
    start = since if since is not None else pacer.look().counts.get(subject.pid, 0)
    while window.clock() - began < WINDOW_SECONDS:
        count = pacer.look().counts.get(subject.pid, 0)
        if count >= start + steps:
            return count
        window.wait(_LOOK_SECONDS)
    raise CaptureFailed(
        f"{steps} step{'s' if steps > 1 else ''} did not end within {duration(WINDOW_SECONDS)} under ncu",
        "perfwatch attach says how the job is doing",
    )


def _subject(request: Request, scene: Scene) -> Subject:
    wanted = scene.wanted(request)
    if not wanted:
        raise CaptureRefused("this machine has no rank of that number", "perfwatch ps lists the ranks")
    return wanted[0]


def _attaching(scene: Scene) -> str:
    """What to say of an installed ncu that can or cannot attach to a process; nothing where there is none."""
    try:
        tool = find("ncu", scene.environment, run_program)
        if can_attach(options(tool, run_program)):
            return (
                f", nor so that ncu {tool.version_text} could attach to it (perfwatch run --arm ncu-attach -- COMMAND)"
            )
    except PerfwatchError:
        pass
    return ""
