"""The drills of two ranks again, with four and with eight: most ranks are then bystanders, and some wait for other victims.

They use gloo on any machine, and NCCL with four GPUs. They run once, at strength loud: the drills of two ranks test weaker faults. Eight
ranks that compute need cores of their own; on a machine with two cores only drills that mostly sleep are run.
"""

from collections.abc import Iterable
from dataclasses import replace

from perfwatch.drills.drill import Drill

WITH_FOUR = frozenset((
    "stalled_collective-loader",
    "mismatched_collective",
    "mismatched_collective-order",
    "wedged_collective",
    "stopped-rank",
    "straggling_rank-loader",
    "exposed_communication",
    "straggling_rank_sleep",
    "busy_rank_zero_saves",
    "busy_rank_zero_evaluates",
    "busy_rank_compiles",
    "stalled_collective-nccl-loader",
    "stopped-nccl",
    "mismatched_collective-nccl",
    "mismatched_collective-nccl-order",
    "mismatched_collective-nccl-sizes",
    "wedged_collective-nccl",
    "straggling_rank-nccl",
    "exposed_communication-nccl",
    "straggling_rank_sleep-nccl",
    "busy_rank_zero_saves-nccl",
    "busy_rank_zero_evaluates-nccl",
    "uneven_last_batch-nccl",
    "ranks_in_step-nccl",
))  # fmt: skip
WITH_FOUR_AT_WORK = frozenset(("uneven_last_batch",))
WITH_EIGHT = frozenset((
    "stalled_collective-loader",
    "mismatched_collective",
    "mismatched_collective-order",
    "wedged_collective",
    "stopped-rank",
    "straggling_rank_sleep",
    "busy_rank_zero_saves",
    "busy_rank_zero_evaluates",
))  # fmt: skip
WITH_EIGHT_AT_WORK = frozenset((
    "straggling_rank-loader",
    "exposed_communication",
    "uneven_last_batch",
    "busy_rank_compiles",
))  # fmt: skip


def with_more_ranks(drills: Iterable[Drill]) -> tuple[Drill, ...]:
    """Those of these drills that are made with four and with eight ranks as well."""
    pairs = list(drills)
    four = [_of(drill, 4, "four") for drill in pairs if drill.name in WITH_FOUR]
    four += [_of(drill, 4, "four", ("six_cores",)) for drill in pairs if drill.name in WITH_FOUR_AT_WORK]
    eight = [_of(drill, 8, "eight") for drill in pairs if drill.name in WITH_EIGHT]
    busy = [_of(drill, 8, "eight", ("ten_cores",)) for drill in pairs if drill.name in WITH_EIGHT_AT_WORK]
    return tuple(four + eight + busy)


def _of(drill: Drill, ranks: int, word: str, more_needs: tuple[str, ...] = ()) -> Drill:
    """The same program with more ranks; where it needs GPUs, each rank has one of its own."""
    needs = tuple(need.replace("two_gpus", f"{word}_gpus") for need in drill.needs) + more_needs
    name, summary = f"{drill.name}-{word}", f"{drill.summary}; {word} ranks"
    return replace(drill, name=name, summary=summary, strengths=(), ranks=ranks, needs=needs)
