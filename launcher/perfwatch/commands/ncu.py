"""``perfwatch ncu``: a second, bounded run of a program under Nsight Compute."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Option, Seconds

# Everything after the options belongs to the command, whatever it looks like.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def ncu(
    command: Annotated[list[str], Argument(metavar="-- COMMAND...", help="What to run, as you would type it.")],
    kernel: Annotated[str, Option(metavar="REGEX", help="Only kernels whose function name matches.")] = "",
    top: Annotated[
        int, Option(metavar="N", min=1, help="The N longest kernels: of --from, or of what was measured.")
    ] = 25,
    capture: Annotated[
        Path | None,
        Option("--from", metavar="CAPTURE", help="A trace of the real job (torch or nsys): it chooses the kernels."),
    ] = None,
    skip: Annotated[
        int | None,
        Option(metavar="N", min=0, help="Launches of chosen kernels to pass first; 1000, or 100 when chosen."),
    ] = None,
    count: Annotated[int, Option(metavar="N", min=1, max=5000, help="Launches to measure, then it ends.")] = 300,
    limit: Annotated[
        float, Option(metavar="TIME", kind=Seconds(1.0), help="The program is ended after so long.")
    ] = 600.0,
    output: Annotated[
        Path | None, Option(metavar="FILE.ncu-rep", help="Where the report goes; here by default.")
    ] = None,
    csv: Annotated[
        bool, Option("--csv", help="Every kernel on stdout, one line each, after the program's own output.")
    ] = False,
    json: Annotated[bool, Option("--json", help="One JSON object on stdout, after the program's own output.")] = False,
) -> None:
    """Run a program again, under ncu, and measure some kernels.

    The run ends when they are measured. Each kernel is replayed several times, so the program is slow and its results are
    invalid. Clocks and caches are left as they are. Collectives are not measured: one that waits would hang.

    \b
    Examples:
      perfwatch ncu -- python train.py
      perfwatch ncu --from rank0.pt.trace.json.gz --top 5 -- python train.py
      perfwatch ncu --kernel 'nvjet|flash' --count 50 -- python train.py
    """
    import os
    import time

    from perfwatch.captures.nsight.choosing import longest
    from perfwatch.captures.nsight.ncu_command import Choice
    from perfwatch.captures.nsight.second_run import measure
    from perfwatch.errors import UsageError
    from perfwatch.processes.programs import run_program
    from perfwatch.report.console import console
    from perfwatch.report.kernels import KernelsReport, kernels_csv, kernels_json
    from perfwatch.report.progress import bar

    if csv and json:
        raise UsageError("--csv and --json exclude each other", "perfwatch ncu --json -- COMMAND")
    if kernel and capture:
        raise UsageError(
            "--kernel and --from exclude each other: both choose the kernels", "perfwatch ncu --from CAPTURE -- COMMAND"
        )
    names = longest(capture.absolute(), top, os.environ, run_program) if capture else ()
    passed = skip if skip is not None else (100 if names or kernel else 1000)
    choice = Choice(kernel, names, passed, count)
    choice.filter()
    report = (output or Path(time.strftime("perfwatch-%Y%m%d-%H%M%S.ncu-rep"))).absolute()
    with bar(sys.stderr, "measuring kernels") as advance:
        measured = measure(command, choice, report, os.environ, limit, advance)
    if json:
        print(kernels_json(measured.table))
    elif csv:
        print(kernels_csv(measured.table), end="")
    else:
        console(sys.stdout).print(KernelsReport(measured.table, top))
    print(f"perfwatch: {measured.table.kernels:,} kernels in {measured.seconds:.1f} s; {report}", file=sys.stderr)
