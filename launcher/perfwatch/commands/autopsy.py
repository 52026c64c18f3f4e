"""``perfwatch autopsy``: why a job ended, from the files that it left."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfwatch.options import Argument, Exit, Json, Option
from perfwatch.watching.options import JsonVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfwatch.recording.recording import Recording
    from perfwatch.verdict import Verdict
    from perfwatch_probes.deadline import Caller

WATCH_SECONDS = 2.0  # between two looks at a folder
FIND_SECONDS = 5.0  # for a name that may be a file


def autopsy(
    paths: Annotated[
        list[str],
        Argument(metavar="PATH...", help="Files and folders of a job that is gone; - for standard input."),
    ],
    watch: Annotated[
        bool, Option("--watch", help="Watch a folder of logs and dumps, and judge each job as it ends there.")
    ] = False,
    json: Json = False,
    json_version: JsonVersion = 2,
    session: Annotated[
        Path | None, Option(metavar="DIR", help="Where the result is recorded; a new folder on a local disk.")
    ] = None,
    no_record: Annotated[bool, Option("--no-record", help="Record nothing.")] = False,
) -> None:
    """Say why a job ended, from the files that it left.

    Reads logs, recorded sessions (by name, folder or bundle), flight-recorder dumps of torch, stacks and answers of NCCL's RAS
    service, of any number of ranks and attempts; what a file is, its content tells. Prints the same verdict as attach, and records
    it: report, replay, compare and bundle work on the result. With --watch the session also has the last lines of each log, and
    the dumps, in left/.
    The exit code tells the state: 30 hung, 40 finished, 41 crashed or killed, 50 inconclusive.

    \b
    Examples:
      perfwatch autopsy logs/ dumps/
      perfwatch autopsy slurm-1234.out --json | jq '.sub_cause, .retry'
      kubectl logs POD --previous | perfwatch autopsy -
      perfwatch autopsy --watch /var/log/jobs
    """
    import os
    import time

    from perfwatch.autopsy.files import spooled
    from perfwatch.autopsy.recording_of import gather, recording_of
    from perfwatch.errors import NoSuchTarget
    from perfwatch.postmortem import diagnose
    from perfwatch.report.exits import exit_code
    from perfwatch.report.progress import bar
    from perfwatch_probes.guest import Guests, identity_of

    def told(recording: "Recording", verdict: "Verdict") -> Path | None:
        return _tell(recording, verdict, json_version if json else None, session, not no_record)

    guests = Guests()
    child = guests.child(identity_of(os.getpid()))
    if watch:
        try:
            _watch(paths, child, told)
        finally:
            guests.close()
        return
    with (
        ExitStack() as unpacked,
        spooled(paths, sys.stdin.buffer) as (files, names),
        bar(sys.stderr, "reading") as progress,
    ):
        try:
            meant = [_of_session(one, child, unpacked) or one for one in files]
            gathered = gather(meant, child, names, progress)
        finally:
            guests.close()
    if not gathered.read:
        reasons = "; ".join(f"{name}: {reason}" for name, reason, _ in gathered.missing[:4])
        pid = next((path for path in paths if path.isascii() and path.isdecimal()), None)
        advice = f"of the running process {pid}: perfwatch attach {pid}" if pid else "perfwatch autopsy --help"
        raise NoSuchTarget(f"no file about a job was found ({reasons or 'no files'})", advice)
    recording = recording_of(gathered, ("perfwatch", "autopsy", *paths), time.time())
    verdict = diagnose(recording)
    told(recording, verdict)
    raise Exit(exit_code(verdict))


def _of_session(path: str, child: "Caller", unpacked: ExitStack) -> str | None:
    """The folder of a session that is meant by its name or by its bundle; None where the path is meant as it is."""
    import os

    from perfwatch.autopsy.files import is_there
    from perfwatch.errors import SessionUnreadable
    from perfwatch.recording import archive
    from perfwatch.recording.finding import find_session
    from perfwatch_probes.probe import Unavailable

    try:
        if path.endswith((".tar.gz", ".tgz")):
            return str(unpacked.enter_context(archive.opened(Path(path))))
        if os.path.basename(path) == path and not child.call(is_there, path, deadline_seconds=FIND_SECONDS):
            return str(find_session(path, os.environ, child))
    except (SessionUnreadable, Unavailable, OSError):
        pass  # ``gather`` says what is wrong with it
    return None


def _tell(
    recording: "Recording", verdict: "Verdict", json_version: int | None, session: Path | None, record: bool
) -> Path | None:
    """Print a verdict, and keep it with what it rests on; the session, where there is one."""
    import os
    import time

    from perfwatch.autopsy.recording_of import keep
    from perfwatch_probes.deadline import KillableChild

    folder, lost = None, ""
    if record:
        child = KillableChild()
        folder, lost = keep(recording, verdict, session, os.environ, child, time.time())
        child.close()
    if json_version is not None:
        from perfwatch.report.json import as_json

        print(as_json(verdict, json_version), flush=True)
    else:
        from perfwatch.report.console import console
        from perfwatch.report.terminal import VerdictReport
        from perfwatch.text import clean

        out = console(sys.stdout)
        out.print(VerdictReport(verdict))
        if folder is not None:
            out.print(f"recorded in {clean(str(folder))}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if lost:
        print(f"perfwatch: {lost}", file=sys.stderr)
    return folder


def _watch(paths: list[str], child: "Caller", told: "Callable[[Recording, Verdict], Path | None]") -> None:
    """Watch a folder until SIGTERM or Ctrl-C."""
    import os
    import tempfile
    import time

    from perfwatch.autopsy.watch import FolderWatch
    from perfwatch.errors import UsageError
    from perfwatch.processes.stop_signals import Leaving
    from perfwatch.text import say

    if len(paths) != 1 or paths[0] == "-":
        raise UsageError("--watch takes one folder", "perfwatch autopsy --watch /var/log/jobs")
    folder = os.path.abspath(paths[0])  # never looked at here: its mount may be dead
    with Leaving() as leaving, tempfile.TemporaryDirectory(prefix="perfwatch-watch-") as spool:
        watched = FolderWatch(folder, Path(spool), child, time.monotonic, time.time)
        trouble = said = ""
        while True:
            for ended in watched.turn():
                say(sys.stderr, f"{ended.name} has ended")
                kept = told(ended.recording, ended.verdict)
                if kept is not None:
                    _keep_copies(ended.copies, kept)
            if watched.trouble and watched.trouble != trouble:
                say(sys.stderr, watched.trouble)
            elif not said:
                said = f"watching {folder}: each folder or file in it is a job; Ctrl-C ends it"
                say(sys.stderr, said)
            trouble = watched.trouble
            if leaving.wait(WATCH_SECONDS):
                return


def _keep_copies(copies: Path, session: Path) -> None:
    from perfwatch.autopsy.watch import keep_copies
    from perfwatch.text import say

    try:
        keep_copies(copies, session)
    except OSError as error:
        say(sys.stderr, f"the last lines and dumps were not kept in {session}: {error.strerror}")
