"""The processes of one Slurm job on this node: ``perfwatch daemon --slurm-job``.

slurmd puts each process of a job into a control group that only root can make or leave, so the group decides wherever
there is one (``ProctrackType=proctrack/cgroup``). A process outside those groups belongs to the job if its environment
says so, and only if it runs as the user that ``--user`` names: any user can write any job id into an environment.
Source: the Slurm pages "Control Group v2 plugin" and "Cgroups Guide".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Process

VARIABLE = "SLURM_JOB_ID"
# Version 2 below the scope of slurmstepd, version 1 below a folder of slurmd; the node's name is in both where one machine
# runs several slurmd. A user may be given a subtree of control groups by systemd, but only below a .service of theirs.
_GROUP = re.compile(r"(?:(?:/[^/]+\.slice)+/(?:[^/]+_)?slurmstepd\.scope|/slurm(?:_[^/]+)?/uid_\d+)/job_(\d+)(?:/.*)?")


def job_of_groups(memberships: str) -> int | None:
    """The Slurm job that the text of /proc/PID/cgroup names; None if the process is in no group of slurmd's."""
    for line in memberships.splitlines():
        match = _GROUP.fullmatch(line.split(":", 2)[-1])
        if match is not None:
            return int(match[1])
    return None


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
            job_id = job_of_groups(filesystem.read_text(filesystem.proc / str(process.pid) / "cgroup"))
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
