"""A key that all launchers of one job share, computed from the variables that srun, mpirun or torchrun set."""

import hashlib
from collections.abc import Mapping

RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
SIZE_NAMES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
JOB_NAMES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
)


def rank_in(environment: Mapping[str, str]) -> str | None:
    """The number that was given to this launcher."""
    return next((environment[name] for name in RANK_NAMES if name in environment), None)


def job_key(environment: Mapping[str, str]) -> str | None:
    """What all launchers of one job on this node have in common; None where there is only one of us."""
    sizes = [environment[name] for name in SIZE_NAMES if name in environment]
    if sizes and all(size == "1" for size in sizes):
        return None
    facts = [f"{name}={environment[name]}" for name in JOB_NAMES if name in environment]
    if not facts or not any(name in environment for name in RANK_NAMES):
        return None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
