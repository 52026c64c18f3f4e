"""``perfwatch replay``: judge a recorded session again."""

import sys
from typing import TYPE_CHECKING, Annotated

from perfwatch.gate import DescribedModel, MinMfu, Model, checked, gated, told
from perfwatch.options import Argument, Exit, Json, Option
from perfwatch.watching.options import JsonVersion

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from perfwatch.recording.recording import Event

LARGE_BYTES = 32 * 2**20  # of a session whose recent part alone is loaded
REMEMBER_SECONDS = 600.0  # as the watcher does


def replay(
    session: Annotated[
        str | None,
        Argument("[SESSION]", help="A session, a folder of sessions, or an archive; the newest one by default."),
    ] = None,
    at: Annotated[
        str | None, Option(metavar="TIME", help="Judge at this moment: seconds since the start, or ISO 8601.")
    ] = None,
    final: Annotated[bool, Option("--final", help="Judge at the very end, when the job may be gone.")] = False,
    json: Json = False,
    json_version: JsonVersion = 2,
    described: DescribedModel = Model,
    min_mfu: MinMfu = None,
) -> None:
    """Judge a recorded session again.

    On any machine, at any time. Prints the last verdict on the running job, and how the job ended. The end comes
    first if the job crashed or was killed and had not been hung, or if there was no verdict before.
    The exit code tells the state: 0 healthy, 10 busy, 20 slow, 30 hung, 40 finished, 41 crashed or killed, 50
    inconclusive, 60 below --min-mfu.

    \b
    Examples:
      perfwatch replay                     the newest session of this machine
      perfwatch replay SESSION --at 120    what was known after two minutes
      perfwatch replay SESSION --final --json
      perfwatch replay SESSION --params 8e9 --tokens-per-step 4e6 --min-mfu 35
    """
    from dataclasses import replace

    from perfwatch.errors import EXIT_CODES, UsageError
    from perfwatch.fleet.merge.fleet_recording import MODE, judge_recorded
    from perfwatch.postmortem import diagnose
    from perfwatch.recording import archive
    from perfwatch.recording.recent import lines_bytes, load_recent
    from perfwatch.recording.recording import load, load_session
    from perfwatch.recording.session import AUTOPSY
    from perfwatch.report.json import as_json
    from perfwatch.report.moment import last_alive, meant, parse_moment, told_first
    from perfwatch.report.progress import bar
    from perfwatch.report.replay import ReplayReport
    from perfwatch.triage.history import key_of

    if at is not None and final:
        raise UsageError("--at and --final name two moments: choose one of them", "perfwatch replay --final")
    model = checked(described(), min_mfu, recorded=True)
    folder = meant(session, "perfwatch replay")
    with archive.opened(folder) as opened:
        if lines_bytes(opened) > LARGE_BYTES and load_session(opened).mode not in (MODE, AUTOPSY) and _in_seconds(at):
            with bar(sys.stderr, "reading") as progress:
                recording = load_recent(
                    opened, key_of, REMEMBER_SECONDS, lambda events: _moment(at, final, events), progress
                )
        else:
            recording = load(opened)
    recording = told(recording, model)
    judge = judge_recorded if recording.session.mode == MODE else diagnose

    def judged(moment: float) -> ReplayReport:
        return ReplayReport(folder, recording, moment, judge(recording.until(moment), moment))

    moment = recording.end if final else None if at is None else parse_moment(at, recording)
    if moment is None and min_mfu is not None:
        moment = last_alive(recording)  # the gate is about the run, not about when something was first said of it
    shown, lived = told_first(recording, judged) if moment is None else (judged(moment), None)
    if json:
        print(as_json(shown.verdict, json_version))
    else:
        from perfwatch.report.console import console

        console(sys.stdout).print(replace(shown, lived=lived))
    code, said = gated(shown.verdict, min_mfu)
    if said:
        print(f"perfwatch: {said}", file=sys.stderr)
    if code == EXIT_CODES["gate_failed"]:
        from perfwatch.report.headroom import print_headroom

        print_headroom(folder, sys.stderr)
    raise Exit(code)


def _in_seconds(at: str | None) -> bool:
    """True unless a moment is named that only the whole recording tells."""
    try:
        return at is None or float(at) >= 0
    except ValueError:
        return False


def _moment(at: str | None, final: bool, events: "Many[Event]") -> float | None:
    """The moment, besides the end, at which a session is judged."""
    from perfwatch.report.moment import last_told

    return None if final else float(at) if at is not None else last_told(events)
