"""``perfwatch report``: a recorded session as something to hand over."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Option


def report(
    session: Annotated[
        str | None,
        Argument("[SESSION]", help="A session, a folder of sessions, or an archive; the newest one by default."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Where it goes; its ending chooses the form.")
    ] = None,
    format: Annotated[
        str | None,
        Option("--format", "-f", metavar="FORM", help="html, md, text, json, perfetto or speedscope."),
    ] = None,
    at: Annotated[
        str | None, Option(metavar="TIME", help="Judge at this moment: seconds since the start, or ISO 8601.")
    ] = None,
    final: Annotated[bool, Option("--final", help="Judge at the very end, when the job may be gone.")] = False,
) -> None:
    """Make a report of a session.

    One file that holds everything and opens without a network: the verdict first, then the timeline, the stacks, the
    threads, what perfwatch used and how it was measured. The verdict is that of perfwatch replay. md, text and json go to stdout
    unless -o names a file.

    \b
    Examples:
      perfwatch report                          the newest, as SESSION.html
      perfwatch report SESSION -o report.html
      perfwatch report SESSION --format md      to paste into a chat
      perfwatch report SESSION -o hang.pftrace  for ui.perfetto.dev
    """
    import gc
    import os

    from perfwatch.errors import UsageError
    from perfwatch.recording import archive
    from perfwatch.recording.finding import find_session
    from perfwatch.recording.recording import load
    from perfwatch.report.formats import FORMATS, ending, named
    from perfwatch.report.moment import as_newest, parse_moment
    from perfwatch.report.saving import save
    from perfwatch.report.story import tell, tell_whole
    from perfwatch.text import say
    from perfwatch_probes.deadline import KillableChild

    if at is not None and final:
        raise UsageError("--at and --final name two moments: choose one of them", "perfwatch report --final")
    chosen = named(format) if format else ending(output.name) if output else FORMATS[0]
    if chosen is None:
        listed = "\n".join(f"{one.name:<12}{one.suffix:<18}{one.what}" for one in FORMATS)
        asked = f"--format {format!r}" if format else f"the ending of {output}"
        raise UsageError(f"{asked} is not a report format", listed)
    gc.disable()  # a recording is many small records that all stay: looking through them again and again takes as long as reading
    folder = find_session(session, os.environ, KillableChild())
    if session is None:
        say(sys.stderr, as_newest(folder))
    with archive.opened(folder) as opened:
        recording = load(opened)
    moment = recording.end if final else None if at is None else parse_moment(at, recording)
    made = chosen.render(tell_whole(folder, recording) if moment is None else tell(folder, recording, moment))
    if output is None and chosen.readable:
        text = made if isinstance(made, str) else made.decode()
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        return
    target = output or Path(f"{folder.name.removesuffix('.tar.gz')}{chosen.suffix}")
    save(target, made)
    print(str(target))
