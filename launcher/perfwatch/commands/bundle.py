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
        Path | None, Option("--output", "-o", metavar="FILE", help="Where it goes; SESSION.tar.gz here by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Make one redacted archive of a session.

    It can be sent to someone: everything that looks like a secret is taken out once more. Whoever gets the archive
    runs: perfwatch replay FILE.

    \b
    Examples:
      perfwatch bundle                       the newest session of this machine
      perfwatch bundle SESSION -o hang.tar.gz
    """
    import os

    from perfwatch.errors import UsageError
    from perfwatch.recording import archive
    from perfwatch.recording.finding import find_session
    from perfwatch.report.progress import bar
    from perfwatch.report.saving import whole
    from perfwatch_probes.deadline import KillableChild

    folder = find_session(session, os.environ, KillableChild())
    target = output or Path(f"{folder.name}.tar.gz")
    if os.path.exists(target):  # not where we may not look: writing says so
        raise UsageError(f"{target} exists already", "give another name: -o FILE")
    with whole(target) as file, bar(sys.stderr, "bundling") as progress:
        bundled = archive.bundle(folder, file, progress)
    for name in bundled.left_out:
        print(f"left out: {name} (not a file of the recording)", file=sys.stderr)
    if bundled.dropped_lines:
        print(f"left out: {bundled.dropped_lines} damaged lines", file=sys.stderr)
    if json:
        import msgspec

        told = {"schema": "perfwatch.bundle/1", "path": str(target), "files": bundled.names, "left_out": bundled.left_out,
                "dropped_lines": bundled.dropped_lines}  # fmt: skip
        print(msgspec.json.encode(told).decode())
    else:
        print(str(target))
