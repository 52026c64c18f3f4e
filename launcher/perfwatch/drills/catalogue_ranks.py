"""The drills of several ranks beyond the first two of each kind: more ranks, groups of ranks, and NCCL on two or four GPUs.

A fault has the name of its cause, with a suffix for a further way to cause it. ``nccl`` in it means one GPU per rank.
"""

from collections.abc import Mapping

from perfwatch.drills.drill import Culprit, Drill

TWO, FOUR = ("two_gpus",), ("four_gpus",)
NCCL = ("--backend", "nccl")
SLEEPER, STRAGGLER = Culprit("rank", "refresh_curriculum", rank=1), Culprit("rank", "prepare_batch", rank=1)


def _fault(
    name: str,
    program: str,
    summary: str,
    ranks: int = 2,
    culprit: Culprit | None = None,
    state: str = "hung",
    needs: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    strengths: tuple[str, ...] = (),
    ends: Mapping[str, str] | None = None,
) -> Drill:
    """Describe a fault; its cause is the part of ``name`` before a hyphen, ``also`` are right as well."""
    causes, backend = (name.split("-")[0], *also), NCCL if needs else ()
    return Drill(
        name, f"{program}.py", summary, state, causes, None, strengths, ranks, needs, culprit, backend, ends=ends or {}
    )


def _alike(
    name: str,
    lookalike_of: str,
    summary: str,
    state: str,
    causes: tuple[str, ...],
    ranks: int = 2,
    needs: tuple[str, ...] = (),
    culprit: Culprit | None = None,
) -> Drill:
    """Describe a program that is not what it looks like: the file's name, with a suffix for the backend or the ranks."""
    backend = NCCL if "two_gpus" in needs or "four_gpus" in needs else ()
    program = f"{name.split('-')[0]}.py"
    return Drill(name, program, summary, state, causes, lookalike_of, (), ranks, needs, culprit, backend)


_GLOO: tuple[Drill, ...] = (
    _fault("stalled_collective-four", "stalled_collective_sleep", "one of four ranks sleeps", 4, SLEEPER),
    _fault("stalled_collective-eight", "stalled_collective_sleep", "one of eight ranks sleeps", 8, SLEEPER),
    _fault(
        "blocked_rendezvous-four",
        "blocked_rendezvous_absent",
        "three ranks of four wait in init_process_group for the last one",
        3,
        Culprit("rank", "meet"),
    ),
    _fault(
        "blocked_rendezvous-eight",
        "blocked_rendezvous_absent",
        "seven ranks of eight wait in init_process_group for the last one",
        7,
        Culprit("rank", "meet"),
    ),
    _fault(
        "blocked_rendezvous-ports",
        "blocked_rendezvous_ports",
        "two ranks that were started by hand look for each other at different ports",
        1,
        Culprit("rank", "train"),
    ),
    _fault(
        "stalled_collective-groups",
        "stalled_collective_groups",
        "pairs and halves of four ranks wait for each other, and all in the end for one that sleeps",
        4,
        Culprit("rank", "rebalance_experts", rank=3),
    ),
    _fault(
        "mismatched_collective-order",
        "mismatched_collective_order",
        "two ranks call two groups in opposite order",
        culprit=Culprit("rank"),
    ),
    _fault(
        "wedged_collective",
        "wedged_collective",
        "both ranks are in the same all_reduce and no data arrives",
        ends={"loud": "temporal"},  # a network
    ),
    _fault("straggling_rank-four", "straggling_rank", "one of four ranks is late", 4, STRAGGLER, "slow"),
    _fault(
        "straggling_rank-loader",
        "straggling_rank_loader",
        "the loader of rank 1 is slow, so rank 1 is late",
        culprit=Culprit("worker", "decode", rank=1),
        state="slow",
    ),
    _fault(
        "straggling_rank-crowded",
        "straggling_rank_crowded",
        "other processes burn the core of rank 1, so rank 1 is late",
        culprit=Culprit("rank", rank=1),
        state="slow",
        also=("contended_cpu",),
        strengths=("loud", "quiet", "masked"),
    ),
    _fault(
        "exposed_communication",
        "exposed_communication",
        "a large model with a tiny batch: gradients travel most of the time",
        state="slow",
        strengths=("loud", "quiet"),
    ),
    _alike(
        "busy_rank_zero_evaluates",
        "stalled_collective",
        "rank 0 validates for minutes, the other waits in the barrier",
        "busy",
        ("evaluating",),
    ),
    _alike(
        "busy_rank_compiles",
        "stalled_collective",
        "rank 1 compiles its kernels for long, the other waits in the barrier",
        "busy",
        ("compiling",),
        needs=("compiler",),
    ),
    _alike(
        "uneven_last_batch",
        "mismatched_collective",
        "rank 0 has more batches, and torch's join lets the other shadow them",
        "healthy",
        ("cpu_training", "balanced"),
    ),
    _alike(
        "ranks_in_step-overlapped",
        "exposed_communication",
        "two ranks that meet in an all_reduce on every step",
        "healthy",
        ("cpu_training", "balanced"),
    ),
    _alike(
        "busy_rank_zero_saves-wedged",
        "wedged_collective",
        "rank 0 writes a long checkpoint while the other waits in the barrier",
        "busy",
        ("checkpointing",),
    ),
)

_NCCL: tuple[Drill, ...] = (
    _fault(
        "stalled_collective-nccl",
        "stalled_collective_sleep",
        "rank 1 of two GPUs sleeps",
        2,
        SLEEPER,
        needs=TWO,
    ),
    _fault(
        "stalled_collective-nccl-loader",
        "stalled_collective_loader",
        "a DataLoader worker of rank 1 of two GPUs is stuck",
        culprit=Culprit("worker", "decode", rank=1),
        needs=TWO,
    ),
    Drill(
        "stalled_collective-nccl-dead",
        "stalled_collective_dead.py",
        "rank 1 was killed, and NCCL does not notice",
        "hung",
        ("stalled_collective",),
        needs=TWO,
        culprit=Culprit("rank", rank=1),
        arguments=NCCL,
    ),
    _fault("stopped-nccl", "stopped_rank", "rank 1 of two GPUs was suspended", 2, Culprit("rank", rank=1), needs=TWO),
    _fault(
        "mismatched_collective-nccl",
        "mismatched_collective",
        "rank 0 is in all_reduce, rank 1 in all_gather, on two GPUs",
        culprit=Culprit("rank"),
        needs=TWO,
    ),
    _fault(
        "mismatched_collective-nccl-order",
        "mismatched_collective_order",
        "two ranks call two groups in opposite order, on two GPUs",
        culprit=Culprit("rank"),
        needs=TWO,
    ),
    _fault(
        "mismatched_collective-nccl-sizes",
        "mismatched_collective_sizes",
        "two ranks reduce tensors of unequal size, which NCCL does not check",
        needs=TWO,
    ),
    _fault("wedged_collective-nccl", "wedged_collective", "the network between two GPUs drops all data", needs=TWO),
    _fault("straggling_rank-nccl", "straggling_rank", "rank 1 of two GPUs is late", 2, STRAGGLER, "slow", TWO),
    _fault(
        "exposed_communication-nccl",
        "exposed_communication",
        "the gradients of a large model travel most of the time, on two GPUs",
        state="slow",
        needs=TWO,
    ),
    _fault(
        "stalled_collective-nccl-four",
        "stalled_collective_sleep",
        "one of four GPUs' ranks sleeps",
        4,
        SLEEPER,
        needs=FOUR,
    ),
    _fault(
        "stalled_collective-nccl-groups",
        "stalled_collective_groups",
        "pairs and halves of four GPUs wait, all in the end for one rank that sleeps",
        4,
        Culprit("rank", "rebalance_experts", rank=3),
        needs=FOUR,
    ),
    _alike(
        "straggling_rank_sleep-nccl",
        "stalled_collective",
        "rank 1 of two GPUs is 3 s late in each step, and then it comes",
        "slow",
        ("straggling_rank",),
        needs=TWO,
        culprit=Culprit("rank", rank=1),
    ),
    _alike(
        "busy_rank_zero_saves-nccl",
        "wedged_collective",
        "rank 0 writes a checkpoint while the other GPU waits in the barrier",
        "busy",
        ("checkpointing",),
        needs=TWO,
    ),
    _alike(
        "busy_rank_zero_evaluates-nccl",
        "stalled_collective",
        "rank 0 validates for minutes while the other GPU waits in the barrier",
        "busy",
        ("evaluating",),
        needs=TWO,
    ),
    _alike(
        "busy_rank_compiles-nccl",
        "stalled_collective",
        "rank 1 compiles for long while the other GPU waits in the barrier",
        "busy",
        ("compiling",),
        needs=(*TWO, "compiler"),
    ),
    _alike(
        "uneven_last_batch-nccl",
        "mismatched_collective",
        "rank 0 has more batches than the other GPU, which shadows them",
        "healthy",
        ("gpu_bound", "balanced"),
        needs=TWO,
    ),
    _alike(
        "ranks_in_step-nccl",
        "exposed_communication",
        "two GPUs that meet in every step, with plenty to compute",
        "healthy",
        ("gpu_bound", "balanced"),
        needs=TWO,
    ),
)

RANK_DRILLS: tuple[Drill, ...] = _GLOO + _NCCL
