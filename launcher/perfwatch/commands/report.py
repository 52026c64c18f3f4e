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
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Where it goes, - for stdout; its ending chooses the form."),
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
    unless -o names a file; a page and what other programs open go to SESSION.html and the like in the current directory.

    \b
    Examples:
      perfwatch report                          the newest, as SESSION.html
      perfwatch report SESSION -o report.html
      perfwatch report SESSION --format md      to paste into a chat
      perfwatch report SESSION -o hang.pftrace  for ui.perfetto.dev
    """
    import gc

    from perfwatch.errors import UsageError
    from perfwatch.recording import archive
    from perfwatch.recording.recording import load
    from perfwatch.report.formats import FORMATS, ending, named
    from perfwatch.report.moment import meant, parse_moment
    from perfwatch.report.saving import announce, print_all, save
    from perfwatch.report.story import tell, tell_whole

    if at is not None and final:
        raise UsageError("--at and --final name two moments: choose one of them", "perfwatch report --final")
    to_stdout = output is not None and str(output) == "-"
    chosen = named(format) if format else ending(output.name) if output and not to_stdout else FORMATS[0]
    if chosen is None:
        listed = "\n".join(f"{one.name:<12}{one.suffix:<18}{one.what}" for one in FORMATS)
        asked = f"--format {format!r}" if format else f"the ending of {output}"
        raise UsageError(f"{asked} is not a report format", listed)
    to_stdout = to_stdout or (output is None and chosen.readable)
    if to_stdout and not chosen.readable and sys.stdout.isatty():
        raise UsageError(f"{chosen.name} is not to be read on a terminal", "perfwatch report -f text, or: -o FILE")
    gc.disable()  # a recording is many small records that all stay: looking through them again and again takes as long as reading
    folder = meant(session, "perfwatch report")
    target = output or Path(f"{folder.name.removesuffix('.tar.gz')}{chosen.suffix}")
    if output is None and not to_stdout:
        announce(target)
    with archive.opened(folder) as opened:
        recording = load(opened)
    moment = recording.end if final else None if at is None else parse_moment(at, recording)
    made = chosen.render(tell_whole(folder, recording) if moment is None else tell(folder, recording, moment))
    if to_stdout:
        print_all(made, sys.stdout)
        return
    save(target, made)
    print(str(target))
