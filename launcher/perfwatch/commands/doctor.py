"""``perfwatch doctor``: what can be observed here, what cannot, and the exact fix."""

import sys
from typing import Annotated

from perfwatch.attach.asked import Container, Pod, Slurm
from perfwatch.options import Argument, Exit, Json, Option


def doctor(
    target: Annotated[
        str | None,
        Argument("[PID|PATTERN|SESSION]", help="Check this process too, or the job with this in its command line."),
    ] = None,
    slurm: Slurm = None,
    pod: Pod = None,
    container: Container = None,
    strict: Annotated[bool, Option("--strict", help="Exit with 1 also where something is limited.")] = False,
    json: Json = False,
) -> None:
    """Say what can be observed here.

    On this machine, and of one job. Each check is ok, limited (verdicts are less certain) or missing (most hangs cannot be
    explained), with the exact fix. Exit codes: 0 nothing is missing, 1 something is.

    \b
    Examples:
      perfwatch doctor             this machine and this user
      perfwatch doctor 4711        and this job
      perfwatch doctor train.py    the same by its command line
      perfwatch doctor --strict    a node health check
    """
    import os

    from msgspec.structs import replace

    from perfwatch.attach.asked import process
    from perfwatch.doctor.checkup import SCHEMA, Ability, Summary, examine_machine
    from perfwatch.doctor.gpu import GpuCheckup
    from perfwatch.doctor.job import examine_job
    from perfwatch.doctor.profilers import examine_profilers
    from perfwatch.processes.programs import run_program
    from perfwatch.processes.reinvoke import as_typed_here
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem
    from perfwatch_probes.gpu import GpuProbe

    def as_typed(found: list[Ability]) -> list[Ability]:
        return [replace(one, fix=as_typed_here(one.fix)) for one in found]

    named = any(one is not None for one in (target, slurm, pod, container))
    pid = process(target, slurm, pod, container, "perfwatch doctor") if named else None
    child, filesystem = KillableChild(), Filesystem()
    gpus = GpuCheckup(GpuProbe())
    machine = [
        *examine_machine(filesystem, child, os.environ),
        *gpus.examine(),
        *examine_profilers(os.environ, run_program),
    ]
    job = [] if pid is None else examine_job(filesystem, pid, child, gpus)
    machine, job = as_typed(machine), as_typed(job)
    summary = Summary.of([*machine, *job])
    if json:
        from perfwatch.text import json_text

        found = {"schema": SCHEMA, "machine": machine, "pid": pid, "job": job, "summary": summary, "text": str(summary)}
        print(json_text(found))
        raise Exit(summary.exit_code(strict))
    from perfwatch.doctor.report import CheckupReport
    from perfwatch.report.console import console

    output = console(sys.stdout)
    output.print(CheckupReport("this machine", machine))
    if job:
        output.print()
        output.print(CheckupReport(f"process {pid}", job))
    output.print(str(summary))
    raise Exit(summary.exit_code(strict))
