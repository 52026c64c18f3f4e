"""Rank numbers: what a launcher gave to a process, which process of Ray is which rank, and the ranks that were not seen.

``RANK`` is torch's own word, and holds wherever it is set for a rank. mpirun and srun set words of their own, which a program
turns into torch's when it starts, where nobody outside can see it: those count only where no process of the job has a
``RANK``. A launcher's own ``RANK`` is none: operators of clusters set it on the container in which torchrun then starts
(Kubeflow's PyTorchJob: it numbers the hosts there).

Of a program of Ray the workers of Ray Train or the trials of Ray Tune train. Controllers and other actors only serve them. The
function that trains runs in a thread that Ray made for it, in an actor whose main thread takes calls. Its rank is told to a
worker when it runs, where it is not seen: rank 0 is the one that serves torch's store, the others are counted in the order of
their start, which need not be Ray's (measured: of two workers the second to start was rank 0).

Source: Open MPI 4 and 5 (``mpirun(1)``), MPICH's hydra and PMI-2, MVAPICH, PMIx, srun(1) of Slurm 22.05 and 24.05, flux-run(1); Ray 2.60,
``ray/train/v2/_internal/execution/worker_group`` and ``ray/air/_internal/util.py`` (the older Train, and Tune).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from perfwatch.triage.words.frames import is_user, tags
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import MOST_RANKS, count

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
RUNS = "train_function"  # tag of the thread that Ray made for a training
_WORKER = re.compile(r"^ray::_?RayTrainWorker\b")
_CONTROLLER = re.compile(r"^ray::_?TrainController\b")


@dataclass(frozen=True)
class Placement:
    """A number among so many; ``size`` is None where the launcher does not say."""

    rank: int
    size: int | None


def placement(process: r.Process) -> Placement | None:
    """What mpirun, srun or the like said to a process; None where they did not start it."""
    names = process.environment
    for word, sizes, only_with in _WORDS:
        rank = count(names.get(word))
        if rank is not None and (not only_with or only_with in names):
            size = next((many for name in sizes if (many := count(names.get(name))) is not None), None)
            return Placement(rank, size)
    return None


def rank_of(process: r.Process) -> int | None:
    """The number that any launcher gave to a process; what only inherited it has the same."""
    place = placement(process)
    return place.rank if process.rank is None and place is not None else process.rank


def launches(process: r.Process) -> bool:
    """True if a process is one of the launchers that are written in Python: torchrun, accelerate, deepspeed."""
    program = program_of(process.command)
    return process.python and program is not None and _LAUNCHER.search(program) is not None


def program_of(command: tuple[str, ...]) -> str | None:
    """The script or module that a Python runs; None for neither (``-c``, a prompt, a command line that is hidden)."""
    words = iter(command[1:])
    for word in words:
        if word in ("-m", "-c", "-"):
            return next(words, None) if word == "-m" else None
        if word in _WITH_A_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def runs_training(stack: r.Stack) -> bool:
    """True if a thread is in the function that a program gave to Ray to train by; one of Ray's own (a trainer's) is none."""
    return RUNS in tags(stack) and any(map(is_user, stack.frames))


def ray_ranks(
    processes: Mapping[int, r.Process], training: Collection[int], ended: Collection[int], stores: Collection[int]
) -> dict[int, int | None]:
    """The living workers of Ray Train, by pid with their numbers; failing them the trials, each by itself; empty without Ray.

    Those that have ended are no ranks any more: Ray replaces a group as a whole, and ends a trial that is done.
    """
    living = [one for pid, one in processes.items() if pid not in ended and title(one).startswith("ray::")]
    workers = sorted(filter(of_ray_train, living), key=lambda one: (one.pid not in stores, one.start_ticks, one.pid))
    if not workers:
        return {one.pid: None for one in living if one.pid in training}
    one_group = len(workers) > 1 and sum(bool(_CONTROLLER.search(title(one))) for one in living) <= 1
    return {one.pid: index if one_group else None for index, one in enumerate(workers)}


def of_ray_train(process: r.Process) -> bool:
    """True if a process is a worker of Ray Train."""
    return _WORKER.search(title(process)) is not None


def untold_ranks(ranks: Collection[int], stores: Collection[int]) -> str:
    """What to say of the numbers of so many workers of Ray Train; nothing where they cannot be wrong."""
    known = any(pid in stores for pid in ranks)
    if len(ranks) < 2 or (known and len(ranks) == 2):
        return ""
    others = "the workers other than rank 0 are" if known else "they are"
    return f"Ray does not show which worker is which rank: {others} numbered in the order of their start"


def title(process: r.Process) -> str:
    """What a process of Ray calls itself: its class, and the method that ran when it was first looked at."""
    return process.command[0] if process.command else process.name


class RankGaps(Collection[int]):
    """The ranks from 0 to a world size that are not among those seen, in order.

    ``runs`` are consecutive ranks, as ranges: counting and printing them costs as much as the ranks that were seen.
    """

    def __init__(self, seen: Iterable[int | None], size: int | None) -> None:
        end = min(size or 0, MOST_RANKS)
        runs, start = [], 0
        for rank in sorted({one for one in seen if one is not None and 0 <= one < end}):
            runs.append(range(start, rank))
            start = rank + 1
        runs.append(range(start, end))
        self.runs = tuple(run for run in runs if run)

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[int]:
        """One after the other."""
        return chain.from_iterable(self.runs)

    def __contains__(self, rank: object) -> bool:
        """True if that rank was not seen."""
        return any(rank in run for run in self.runs)


def rank_ranges(ranks: Iterable[int]) -> str:
    """``0-126,128-511``: each rank once, in order; empty for none."""
    runs = list(ranks.runs) if isinstance(ranks, RankGaps) else []
    for rank in () if isinstance(ranks, RankGaps) else sorted(set(ranks)):
        start = runs.pop().start if runs and rank == runs[-1].stop else rank
        runs.append(range(start, rank + 1))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
