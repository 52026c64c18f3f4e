"""Which job a rank belongs to, by what its launcher put into its environment: the same on every host of one job.

Two names of machines in ``MASTER_ADDR`` are two jobs; the first host may call itself ``localhost``, or one host use a name and
another a number: that parts nothing.
"""

import re

import msgspec

from perfwatch.ownership import NO_RUN_IDS
from perfwatch.triage.job import Job
from perfwatch_probes.readings import Process

# Names under which launchers number a job, and what they call it: Open MPI 5 and 4, MPICH, Flux.
SCHEDULER_NAMES = (
    ("PMIX_NAMESPACE", "mpi job"),
    ("OMPI_MCA_ess_base_jobid", "mpi job"),
    ("PMI_JOBID", "mpi job"),
    ("FLUX_JOB_ID", "flux job"),
)
SLURM = "slurm job "
_LOCAL = re.compile(r"localhost|127\.|\[?::1\b|0\.0\.0\.0$|ip6-l")
_NUMBER = re.compile(r"[\d.]+$|\[?[\da-f]*:")  # IPv4 or IPv6
MOST_WORDS = 4  # of the command line


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of one job have in common. Empty text: not said by its launcher."""

    master: str = ""  # MASTER_ADDR:MASTER_PORT
    run: str = ""  # TORCHELASTIC_RUN_ID
    scheduler: str = ""  # "slurm job 12 step 0", ...
    world_size: int | None = None
    program: str = ""  # the first words of a rank's command line, redacted

    @property
    def key(self) -> tuple[str, str, str]:
        """What parts of one job mostly have in common (``joins``); all empty where nothing tells one job from another."""
        return self.master.rpartition(":")[2], self.run, self.scheduler

    @property
    def told(self) -> bool:
        """True if anything but the program tells this job from others."""
        return any(self.key)

    @property
    def address(self) -> str:
        """MASTER_ADDR."""
        return self.master.rpartition(":")[0].lower()

    @property
    def master_is_local(self) -> bool:
        """True if the master's name says nothing on another machine."""
        return not self.address or _LOCAL.match(self.address) is not None

    def without_master(self) -> "Identity":
        """The same, but for the master's name."""
        return msgspec.structs.replace(self, master=f":{self.master.rpartition(':')[2]}")

    def same_master(self, other: "Identity") -> bool | None:
        """True if both name one machine as their master; None where that cannot be told."""
        mine, theirs = self.address, other.address
        if self.master_is_local or other.master_is_local:
            return None
        if mine == theirs or mine.startswith(f"{theirs}.") or theirs.startswith(f"{mine}."):
            return True
        return None if bool(_NUMBER.match(mine)) != bool(_NUMBER.match(theirs)) else False

    def joins(self, other: "Identity") -> bool:
        """True if ranks that say this and ranks that say that may be of one job; that no rank is in both is for others to see.

        One master outweighs the steps of a scheduler: a script may start a step for each node.
        """
        (port, run, scheduler), (*met, step) = self.key, other.key
        same = self.same_master(other)
        if [port, run] != met or same is False:
            return False
        if scheduler == step:
            return True
        allocations = {scheduler.partition(" step ")[0], step.partition(" step ")[0]}
        return bool(port or run) and (same is True or len(allocations - {""}) == 1)

    def of_another(self, scheduler: str) -> bool:
        """True if it says that it is not the job of this name, but another one of Slurm's.

        A rank that was started by ssh from within the job's script says nothing of Slurm, and is of it all the same.
        """
        return bool(scheduler) and self.scheduler.startswith(SLURM) and not self.scheduler.startswith(scheduler)

    def shown(self) -> str:
        """In a few words, for a person who has to choose."""
        parts = [self.scheduler, f"run {self.run}" if self.run else "", f"master {self.master}" if self.master else ""]
        return ", ".join(part for part in (*parts, self.program) if part)


def identity_of(job: Job) -> Identity:
    """Who a job says that it is, by its first rank that says anything."""
    of_ranks = [identity(rank.process) for rank in job.ranks]
    best = next((one for one in of_ranks if one.told), of_ranks[0] if of_ranks else Identity())
    return msgspec.structs.replace(best, world_size=job.world_size)


def identity(process: Process) -> Identity:
    """What one process' environment says."""
    names = process.environment
    run = names.get("TORCHELASTIC_RUN_ID", "")
    address, port = names.get("MASTER_ADDR", ""), names.get("MASTER_PORT", "")
    return Identity(
        master=f"{address}:{port}" if port else "",
        run="" if run in NO_RUN_IDS else run,
        scheduler=_scheduler(names),
        world_size=process.world_size,
        program=" ".join(process.command[:MOST_WORDS]),
    )


def slurm_job(number: str) -> str:
    """How every rank of a Slurm job begins to say who it is."""
    return f"{SLURM}{number} step "


def _scheduler(names: dict[str, str]) -> str:
    if "SLURM_JOB_ID" in names:
        return slurm_job(names["SLURM_JOB_ID"]) + names.get("SLURM_STEP_ID", "batch")
    return next((f"{word} {names[name]}" for name, word in SCHEDULER_NAMES if name in names), "")
