"""The place that a launcher gave to a process, by the environment that it was started with.

``RANK`` is torch's own word, and holds wherever it is set for a rank. mpirun and srun set words of their own, which a program
turns into torch's when it starts, where nobody outside can see it: those count only where no process of the job has a
``RANK``. A launcher's own ``RANK`` is none: operators of clusters set it on the container in which torchrun then starts
(Kubeflow's PyTorchJob: it numbers the hosts there).

Source: Open MPI 4 and 5 (``mpirun(1)``), MPICH's hydra and PMI-2, MVAPICH, PMIx, srun(1) of Slurm 22.05 and 24.05, flux-run(1).
"""

import re
from dataclasses import dataclass

from perfwatch_probes.bounds import count
from perfwatch_probes.readings import Process

# Number and count of the processes. Slurm sets its own on a batch script too, which is no rank: there it names no step.
_WORDS = (
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ""),
    ("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), ""),
    ("PMI_RANK", ("PMI_SIZE",), ""),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_STEP_ID"),
    ("PMIX_RANK", ("OMPI_COMM_WORLD_SIZE",), ""),
    ("FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ""),
)
_LAUNCHER = re.compile(
    r"(?:^|/)(?:torchrun|accelerate|deepspeed)$"
    r"|^torch\.distributed\.(?:run|launch)$|^accelerate\.commands\.\w+$|^deepspeed\.launcher\.\w+$"
    r"|/deepspeed/launcher/\w+\.py$|/torch/distributed/(?:run|launch)\.py$|/accelerate/commands/\w+\.py$"
)
_WITH_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")


@dataclass(frozen=True)
class Placement:
    """A number among so many; ``size`` is None where the launcher does not say."""

    rank: int
    size: int | None


def placement(process: Process) -> Placement | None:
    """What mpirun, srun or the like said to a process; None where they did not start it."""
    names = process.environment
    for word, sizes, only_with in _WORDS:
        rank = count(names.get(word))
        if rank is not None and (not only_with or only_with in names):
            size = next((many for name in sizes if (many := count(names.get(name))) is not None), None)
            return Placement(rank, size)
    return None


def rank_of(process: Process) -> int | None:
    """The number that any launcher gave to a process; what only inherited it has the same."""
    if process.rank is not None:
        return process.rank
    place = placement(process)
    return place.rank if place is not None else None


def launches(process: Process) -> bool:
    """True if a process is one of the launchers that are written in Python: torchrun, accelerate, deepspeed."""
    program = program_of(process.command)
    return process.python and program is not None and _LAUNCHER.search(program) is not None


def program_of(command: tuple[str, ...]) -> str | None:
    """The script or module that a Python runs; None for neither (``-c``, a prompt, a command line that is hidden)."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, None)
        if word == "-c" or word == "-":
            return None
        if word in _WITH_A_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None
