"""The processes of one Slurm job on this node: ``perfwatch daemon --slurm-job``.

slurmd puts each process of a job into a control group that only root can make or leave, so the group decides wherever
there is one (``ProctrackType=proctrack/cgroup``). A process outside those groups belongs to the job if its environment
says so, and only if it runs as the user that ``--user`` names: any user can write any job id into an environment.
Source: the Slurm pages "Control Group v2 plugin" and "Cgroups Guide".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perfwatch.ownership import slurm_job_of
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Process

VARIABLE = "SLURM_JOB_ID"


@dataclass(frozen=True)
class SlurmJob:
    """A job by its number.

    Args:
        job_id: Slurm's number of the job.
        uid: the job's user; None: the environment of a process is not believed.
    """

    job_id: int
    uid: int | None = None

    def contains(self, filesystem: Filesystem, lineage: Sequence[Process]) -> bool:
        """True if a process belongs to the job.

        Args:
            filesystem: where /proc is.
            lineage: the process, its parent, and so on, as far as they are known.
        """
        process = lineage[0]
        try:
            job_id = slurm_job_of(filesystem.read_text(filesystem.proc / str(process.pid) / "cgroup"))
        except Unavailable:
            return False  # it ended
        if job_id is None and self.uid is not None:
            job_id = self._job_of_environments(lineage)
        return job_id == self.job_id

    def _job_of_environments(self, lineage: Sequence[Process]) -> int | None:
        """The nearest one counts: a launcher may start its ranks with an environment of its own making."""
        for process in lineage:
            if process.uid != self.uid:
                return None
            stated = process.environment.get(VARIABLE, "")
            if stated:
                return int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 20 else None
        return None
