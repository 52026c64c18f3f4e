"""``perfwatch autopsy``: why a job ended, from the files that it left."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Exit, Json, Option
from perfwatch.watching.options import JsonVersion


def autopsy(
    paths: Annotated[
        list[str],
        Argument(metavar="PATH...", help="Files and folders of a job that is gone; - for standard input."),
    ],
    json: Json = False,
    json_version: JsonVersion = 2,
    session: Annotated[
        Path | None, Option(metavar="DIR", help="Where the result is recorded; a new folder on a local disk.")
    ] = None,
    no_record: Annotated[bool, Option("--no-record", help="Record nothing.")] = False,
) -> None:
    """Say why a job ended, from the files that it left.

    Reads logs, flight-recorder dumps of torch, stacks of py-spy and answers of NCCL's RAS service, of any number of ranks;
    what a file is, its content tells. Prints the same verdict as attach, and records it: report, replay, compare and bundle
    work on the result. The exit code tells the state: 30 hung, 40 finished, 41 crashed or killed, 50 inconclusive.

    \b
    Examples:
      perfwatch autopsy logs/ dumps/
      perfwatch autopsy slurm-1234.out --json | jq '.sub_cause, .retry'
      kubectl logs POD --previous | perfwatch autopsy -
    """
    import os
    import time

    from perfwatch.autopsy.files import spooled
    from perfwatch.autopsy.recording_of import gather, keep, recording_of
    from perfwatch.errors import NoSuchTarget
    from perfwatch.postmortem import diagnose
    from perfwatch.report.exits import exit_code
    from perfwatch.report.json import as_json
    from perfwatch.report.progress import bar
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.guest import Guests, identity_of

    guests = Guests()
    with spooled(paths, sys.stdin.buffer) as (files, names), bar(sys.stderr, "reading") as progress:
        try:
            gathered = gather(files, guests.child(identity_of(os.getpid())), names, progress)
        finally:
            guests.close()
    if not gathered.read:
        reasons = "; ".join(f"{name}: {reason}" for name, reason, _ in gathered.missing[:4])
        raise NoSuchTarget(
            f"no file was found that tells of a job ({reasons or 'no files'})", "perfwatch autopsy --help"
        )
    now = time.time()
    recording = recording_of(gathered, ("perfwatch", "autopsy", *paths), now)
    verdict = diagnose(recording)
    folder, lost = None, ""
    if not no_record:
        child = KillableChild()
        folder, lost = keep(recording, verdict, session, os.environ, child, now)
        child.close()
    if json:
        print(as_json(verdict, json_version))
    else:
        from perfwatch.report.console import console
        from perfwatch.report.terminal import VerdictReport
        from perfwatch.text import clean

        out = console(sys.stdout)
        out.print(VerdictReport(verdict))
        if folder is not None:
            out.print(f"recorded in {clean(str(folder))}", style="dim", markup=False, highlight=False)
    if lost:
        print(f"perfwatch: {lost}", file=sys.stderr)
    raise Exit(exit_code(verdict))
