"""``perfwatch doctor``: what can be observed here, what cannot, and the exact fix."""

import sys
from typing import Annotated

from perfwatch.options import PID, Argument, Json


def doctor(
    pid: Annotated[int | None, Argument("[PID]", help="Look at this process of a job too.", kind=PID)] = None,
    json: Json = False,
) -> None:
    """Say what can be observed here.

    On this machine, and of one job: armed, possible or denied, with the exact fix for each denial.

    \b
    Examples:
      perfwatch doctor             this machine and this user
      perfwatch doctor 4711        and this job
    """
    import os

    from perfwatch.doctor.checkup import SCHEMA, examine_machine
    from perfwatch.doctor.gpu import GpuCheckup
    from perfwatch.doctor.job import examine_job
    from perfwatch.doctor.profilers import examine_profilers
    from perfwatch.processes.programs import run_program
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem
    from perfwatch_probes.gpu import GpuProbe

    child, filesystem = KillableChild(), Filesystem()
    gpus = GpuCheckup(GpuProbe())
    machine = [
        *examine_machine(filesystem, child, os.environ),
        *gpus.examine(),
        *examine_profilers(os.environ, run_program),
    ]
    job = [] if pid is None else examine_job(filesystem, pid, child, gpus)
    if json:
        import msgspec

        print(msgspec.json.encode({"schema": SCHEMA, "machine": machine, "pid": pid, "job": job}).decode())
        return
    from perfwatch.doctor.report import CheckupReport
    from perfwatch.report.console import console

    output = console(sys.stdout)
    output.print(CheckupReport("this machine", machine))
    if job:
        output.print()
        output.print(CheckupReport(f"process {pid}", job))
