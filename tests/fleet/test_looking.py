"""Which jobs of a host are looked at for ``perfwatch fleet``."""

from pathlib import Path

from perfwatch.fleet.looking import chosen
from perfwatch.jobs import find_jobs
from perfwatch.probes.deadline import Inline
from tests.machines import FakeMachine


def test_ranks_that_say_nothing_of_slurm_may_be_of_its_job_and_those_of_another_job_are_not(tmp_path: Path) -> None:
    """A script of Slurm's that starts ranks by ssh hands its variables to nobody."""
    machine = FakeMachine(tmp_path)
    for number, slurm in enumerate(("SLURM_JOB_ID=12 SLURM_STEP_ID=0", "SLURM_JOB_ID=13 SLURM_STEP_ID=0", "")):
        environ = f"RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT={29500 + number} {slurm}".strip()
        machine.process(100 + number, 1, environ=environ)
    every, _ = find_jobs(machine.filesystem, Inline())

    found, unwanted = chosen(every, "", "slurm job 12 step ")
    assert ([one.tops[0].pid for one in found], unwanted) == ([100, 102], 0)
    found, unwanted = chosen(every, "node-a:29500", "slurm job 12 step ")
    assert ([one.tops[0].pid for one in found], unwanted) == ([100], 1)
