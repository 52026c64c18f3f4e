"""Lines of the program that call MPI, as their text tells: mpi4py is compiled, so that a call into it has no frame of its own.

Who waits there for other ranks spins at a full core, which is no work of its own.
"""

import re

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES, MPI_COMMON, MPI_POINT_TO_POINT
from perfwatch_probes.readings import SourceLine, Stack

EXCHANGES = MPI_COLLECTIVES | MPI_POINT_TO_POINT
# What mpirun and its like leave in a rank's environment: Open MPI, MVAPICH, MPICH's hydra and Slurm's PMI-2, PMIx.
STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
# ``comm``, ``self.world``, ``MPI.COMM_WORLD``, ``subcomm``, ``row_comm``; ``req`` and ``requests`` of what was begun before.
_RECEIVER = re.compile(r"(?:^|_)(?:\w*comm|world|communicator|mpi|reqs?|requests?)(?:_|$)", re.IGNORECASE)


def called(line: SourceLine, job: Job) -> frozenset[str]:
    """The methods of a communicator or a request that a line calls, by name.

    A name that much else has as well (``send``, ``wait``) counts only on what is called as these are, in a job of MPI.
    """
    parts = [call.rpartition(".") for call in line.calls]
    plain = {name for _, _, name in parts if name in EXCHANGES}
    common = {name for owner, _, name in parts if name in MPI_COMMON and _RECEIVER.search(owner.rpartition(".")[2])}
    return frozenset(plain | common if common and of_mpi(job) else plain)


def waits_for_ranks(history: History, job: Job, stack: Stack) -> bool:
    """Whether a rank of a job of MPI stands at a line of its own that is an exchange with other ranks."""
    if not of_mpi(job):
        return False
    line = calling_line(history, stack)
    return line is not None and bool(called(line, job))


def of_mpi(job: Job) -> bool:
    """Whether mpirun or the like started several ranks; a single one exchanges with nobody."""
    several = max(len(job.ranks), job.world_size or 1) > 1
    return several and all(any(name in rank.process.environment for name in STARTED_BY_MPI) for rank in job.ranks)
