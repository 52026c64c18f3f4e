"""``perfwatch bundle``: one redacted archive of a session."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Json, Option


def bundle(
    session: Annotated[
        str | None, Argument("[SESSION]", help="A session folder, or a folder of sessions; the newest one by default.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Where it goes, - for stdout; SESSION.tar.gz here by default."),
    ] = None,
    json: Json = False,
) -> None:
    """Make one redacted archive of a session.

    To send to someone: everything that looks like a secret is removed once more. Prints what was removed and how to look
    into the archive. The receiver runs: perfwatch replay FILE.

    \b
    Examples:
      perfwatch bundle                       the newest session of this machine
      perfwatch bundle SESSION -o hang.tar.gz
    """
    import os
    from contextlib import nullcontext

    from perfwatch.errors import UsageError
    from perfwatch.recording import archive
    from perfwatch.report.moment import meant
    from perfwatch.report.progress import bar
    from perfwatch.report.saving import announce, whole

    folder = meant(session, "perfwatch bundle")
    target = output or Path(f"{folder.name}.tar.gz")
    to_stdout = str(target) == "-"
    if to_stdout and (json or sys.stdout.isatty()):
        raise UsageError("an archive goes to a pipe, or to a file", "give a name: -o FILE")
    if os.path.exists(target) and not to_stdout:  # not where we may not look: writing says so
        raise UsageError(f"{target} exists already", "give another name: -o FILE")
    if output is None:
        announce(target)
    place = nullcontext(sys.stdout.buffer) if to_stdout else whole(target)
    with place as file, bar(sys.stderr, "bundling") as progress:
        bundled = archive.bundle(folder, file, progress)
    for name in bundled.left_out:
        print(f"left out: {name} (not a file of the recording)", file=sys.stderr)
    if bundled.dropped_lines:
        print(f"left out: {bundled.dropped_lines} damaged lines", file=sys.stderr)
    kinds = ", ".join(f"{count} {kind if count > 1 else kind[:-1]}" for kind, count in bundled.redacted.items())
    print(f"redacted: {kinds or 'nothing looked like a secret'}", file=sys.stderr)
    if json:
        from perfwatch.text import json_text

        told = {"schema": "perfwatch.bundle/1", "path": str(target), "files": bundled.names, "left_out": bundled.left_out,
                "dropped_lines": bundled.dropped_lines, "redacted": bundled.redacted}  # fmt: skip
        print(json_text(told))
        return
    if to_stdout:
        return
    import shlex

    name = shlex.quote(str(target))
    print(str(target), flush=True)
    print(f"look into it before you send it: tar -xzOf {name} | less", file=sys.stderr)
    print(f"who gets it types: perfwatch replay {name}, or perfwatch report {name} for a page", file=sys.stderr)
