"""``perfwatch sessions``: the recordings that are kept, and their removal."""

import sys
from typing import TYPE_CHECKING, Annotated

from perfwatch.options import Argument, Json, OneOf, Option, Seconds, nearest

if TYPE_CHECKING:
    from perfwatch.recording.kept import Kept
    from perfwatch_probes.deadline import Caller

ACTIONS = ("list", "rm", "prune")


def sessions(
    action: Annotated[str, Argument("[list|rm|prune]", "What to do; list by default.", kind=OneOf(ACTIONS))] = "list",
    names: Annotated[
        list[str] | None,
        Argument("[SESSION]...", "rm: names or folders; list: parts of names or commands."),
    ] = None,
    older: Annotated[
        float | None,
        Option("--older", metavar="AGE", kind=Seconds(0, bare=""), help="prune: those older than 12h, 7d, 4w."),
    ] = None,
    keep_incidents: Annotated[
        bool, Option("--keep-incidents", help="prune: keep those of a hang, a slow or a failed run.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="rm, prune: say what would be removed, and remove nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """List recordings, or remove them.

    Recordings lie in $PERFWATCH_DIR; if that is not set, in ~/.local/state/perfwatch or /var/tmp/perfwatch-UID. A command
    that records removes those without an incident after 30 days, and the oldest ones if all together exceed 10 GiB. Set
    keep_days and keep_gib in the table [sessions] of a configuration file, 0 for no limit. The daemon has its own budget.

    \b
    Examples:
      perfwatch sessions
      perfwatch sessions list train.py
      perfwatch sessions rm 20261129-113222-1716
      perfwatch sessions prune --older 7d --keep-incidents
      perfwatch sessions --json | jq -r '.sessions[] | [.name, .state] | @tsv'
    """
    import os
    import time

    from perfwatch.errors import UsageError
    from perfwatch.recording.kept import as_json, sessions_in
    from perfwatch.recording.session import homes_of_sessions
    from perfwatch_probes.deadline import KillableChild

    asked = list(names or ())
    if asked and action == "prune":
        raise UsageError("sessions prune takes no names", f"perfwatch sessions rm {asked[0]}")
    if action == "rm" and not asked:
        raise UsageError(
            "sessions rm: no session is named", "perfwatch sessions rm SESSION; perfwatch sessions lists them"
        )
    if (action == "prune") != (older is not None):
        raise UsageError(
            "sessions prune: --older is missing" if action == "prune" else "--older goes with sessions prune",
            "perfwatch sessions prune --older 7d",
        )
    child = KillableChild()
    try:
        found: list[Kept] = child.call(sessions_in, homes_of_sessions(os.environ, os.getuid()), deadline_seconds=60.0)
        if action == "list":
            found = [one for one in found if not asked or any(_is_meant(one, part) for part in asked)]
            if json:
                from perfwatch.text import json_text

                print(json_text(as_json(found)))
            else:
                from perfwatch.report.console import LIST_COLUMNS, console
                from perfwatch.report.sessions import SessionsReport

                console(sys.stdout, LIST_COLUMNS).print(SessionsReport(found, time.time(), tuple(asked)))
            return
        chosen = _named(found, asked) if action == "rm" else _old(found, older or 0.0, keep_incidents, time.time())
        _remove(chosen, dry_run, json, child)
    finally:
        child.close()


def _is_meant(one: "Kept", part: str) -> bool:
    """True if a part of a name or of a command line is of this session; ``*`` stands for anything, in the whole name."""
    from fnmatch import fnmatchcase
    from os.path import abspath

    whole = fnmatchcase(one.name, part) or one.folder == abspath(part)
    return whole or part in one.name or part in " ".join(one.command)


def _named(found: "list[Kept]", names: list[str]) -> "list[Kept]":
    """Raises SessionUnreadable for a name that there is not."""
    import os

    from perfwatch.errors import SessionUnreadable

    chosen = []
    for name in names:
        one = next((one for one in found if name == one.name or os.path.abspath(name) == one.folder), None)
        if one is None:
            advice = nearest(name, (one.name for one in found)) or "perfwatch sessions lists them"
            raise SessionUnreadable(f"there is no session {name}", advice)
        chosen.append(one)
    return chosen


def _old(found: "list[Kept]", seconds: float, keep_incidents: bool, now: float) -> "list[Kept]":
    old = [one for one in found if now - one.created > seconds and not one.written]
    return [one for one in old if one.calm or not keep_incidents]


def _remove(chosen: "list[Kept]", dry_run: bool, json: bool, child: "Caller") -> None:
    from perfwatch.errors import SessionUnwritable
    from perfwatch.recording.kept import Removed, remove_all
    from perfwatch.report.sessions import size
    from perfwatch.text import json_text

    done: Removed = child.call(remove_all, chosen, dry_run, deadline_seconds=600.0)
    freed = sum(one.size_bytes for one in done.removed)
    if json:
        told = {
            "schema": "perfwatch.sessions_removed/1",
            "dry_run": dry_run,
            "removed": [one.folder for one in done.removed],
            "failed": [{"folder": folder, "reason": reason} for folder, reason in done.stuck],
            "freed_bytes": freed,
        }
        print(json_text(told))
    else:
        for one in done.removed if len(done.removed) < 20 or dry_run else ():
            print(f"{'would remove' if dry_run else 'removed'} {one.name}")
        count = f"{len(done.removed)} session{'' if len(done.removed) == 1 else 's'}"
        print(f"{count}, {size(freed)}{' would be freed' if dry_run else ' freed'}")
    if done.stuck:
        raise SessionUnwritable("; ".join(f"{folder} cannot be removed: {reason}" for folder, reason in done.stuck))
