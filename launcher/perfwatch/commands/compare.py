"""``perfwatch compare``: two recorded runs side by side."""

import sys
from typing import Annotated

from perfwatch.options import Argument, Exit, Json, Option


def compare(
    a: Annotated[str, Argument(metavar="A", help="The baseline: a session or an archive of one.")],
    b: Annotated[str, Argument(metavar="B", help="What is held against it.")],
    fail_if_slower: Annotated[
        float | None,
        Option(
            metavar="PERCENT",
            help="Exit with 60 if B makes fewer steps a second by more than this, with 50 if that is not clear.",
            min=0,
        ),
    ] = None,
    warm_up: Annotated[int, Option(metavar="STEPS", help="Leave out so many first steps of each process.", min=0)] = 10,
    json: Json = False,
) -> None:
    """Compare two recorded runs.

    Prints the conditions that differ (world size, GPU, clocks, versions, command line), how many steps a second each
    makes and how certain the difference is, the median step, where the time went, and whether the verdict changed. With
    --fail-if-slower the exit code is a gate: 0 not slower, 60 slower, 50 not clear, as for a B that crashed or hung.
    Otherwise it is 0.

    \b
    Examples:
      perfwatch compare yesterday/ today/
      perfwatch compare main.tar.gz branch/ --fail-if-slower 5
      perfwatch compare A B --json | jq '.rate | {change, change_interval}'
    """
    import os

    from perfwatch.comparison.comparison import compare as compared
    from perfwatch.comparison.gate import gate
    from perfwatch.recording import archive
    from perfwatch.recording.finding import find_session
    from perfwatch.recording.recording import Recording, load
    from perfwatch.report.progress import bar
    from perfwatch_probes.deadline import KillableChild

    child = KillableChild()
    folders = [find_session(place, os.environ, child) for place in (a, b)]
    recordings: list[Recording] = []
    with bar(sys.stderr, "reading") as progress:
        for number, folder in enumerate(folders):
            progress(number, 3)
            with archive.opened(folder) as opened:
                recordings.append(load(opened))
        progress(2, 3)
        comparison = compared(recordings[0], recordings[1], (str(folders[0]), str(folders[1])), warm_up)
    if json:
        from perfwatch.text import json_text

        print(json_text(comparison))
    else:
        from perfwatch.comparison.report import ComparisonReport
        from perfwatch.report.console import console
        from perfwatch.report.headroom import headroom_lines
        from perfwatch.report.story import tell_whole
        from perfwatch.text import clean

        console(sys.stdout).print(ComparisonReport(comparison))
        levers = headroom_lines(tell_whole(folders[1], recordings[1]))
        if levers:
            print("what would make B faster", *(f"   {clean(line)}" for line in levers), sep="\n")
    if fail_if_slower is not None:
        code, said = gate(comparison, fail_if_slower)
        print(f"perfwatch: {said}", file=sys.stderr)
        raise Exit(code)
