"""``perfwatch kernels``: the kernel table of an Nsight Compute report."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Json, Option


def kernels(
    report: Annotated[Path, Argument(metavar="FILE", help="A .ncu-rep file, or ncu's raw CSV (.csv, .csv.gz).")],
    top: Annotated[int, Option(metavar="N", min=1, help="How many kernels the table shows.")] = 25,
    csv: Annotated[bool, Option("--csv", help="Every kernel on stdout, one line each, under a header.")] = False,
    json: Json = False,
) -> None:
    """Say what each GPU kernel did, from an ncu report.

    Per kernel and per pass (forward, backward, optimizer): time, DRAM rate, tensor cores, L2 cache, instructions. The
    efficiency is how near a kernel came to the nearer of two roofs, the highest DRAM rate seen in this report and the
    tensor cores' peak, weighted by time.

    \b
    Examples:
      perfwatch kernels train.ncu-rep
      perfwatch kernels train.ncu-rep --csv > kernels.csv
      perfwatch kernels train.ncu-rep --json | jq .efficiency
    """
    import os

    from perfwatch.captures.nsight.ncu_report import read_report
    from perfwatch.errors import UsageError
    from perfwatch.processes.programs import run_program
    from perfwatch.report.console import console
    from perfwatch.report.kernels import KernelsReport, kernels_csv, kernels_json
    from perfwatch.report.progress import bar

    if csv and json:
        raise UsageError("--csv and --json: choose one", "leave one of them out")
    with bar(sys.stderr, f"reading {report.name}"):
        table = read_report(report, os.environ, run_program)
    if json:
        print(kernels_json(table))
    elif csv:
        print(kernels_csv(table), end="")
    else:
        console(sys.stdout).print(KernelsReport(table, top))
