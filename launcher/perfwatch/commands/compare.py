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
            help="Exit with 60 where B's median step is surely slower by more (50: cannot tell).",
            min=0,
        ),
    ] = None,
    warm_up: Annotated[
        int, Option(metavar="STEPS", help="How many first steps of each process are left out.", min=0)
    ] = 10,
    json: Json = False,
) -> None:
    """Hold two recorded runs against each other.

    Says first in which conditions they differ (world size, GPU, clocks, versions, command line), then how much longer
    the steps of B take and how sure that is, then where the time and the machine went, and whether the verdict changed.
    With --fail-if-slower the exit code is a gate: 0 not slower, 60 slower, 50 cannot tell, which holds
    of a B that crashed or hung, too; otherwise it is 0.

    \b
    Examples:
      perfwatch compare yesterday/ today/
      perfwatch compare main.tar.gz branch/ --fail-if-slower 5
      perfwatch compare A B --json | jq '.steps[] | {quantile, change}'
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
        import msgspec

        print(msgspec.json.encode(comparison).decode())
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
