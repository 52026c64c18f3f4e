"""Which ranks of a job have not come, by the numbers of those that have."""

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.verdict import Culprit
from perfwatch.triage.waits.node import culprit, node_of

MOST_NAMED = 8


def blamed(case: Case, ranks: list[int]) -> tuple[Culprit, ...]:
    """The ranks that should be here; of a job on several machines nobody here knows which of the others it is. None waits."""
    here = {rank.process.local_world_size for rank in case.ranks}
    elsewhere = any(size is not None and size < (case.job.world_size or 0) for size in here)
    return () if elsewhere else tuple(Culprit(pid=0, rank=rank) for rank in ranks[:MOST_NAMED])


def departed(case: Case) -> tuple[tuple[Culprit, ...], str]:
    """The ranks that have ended while others are here, and that in words: ``; rank 2 (pid 7) has ended (exited with code 0)``."""
    ended = [rank for rank in case.job.ranks if not rank.alive][:MOST_NAMED]
    told = ((rank, how_it_ended(case.history, rank.pid)) for rank in ended)
    words = (f"; rank {rank.rank} (pid {rank.pid}) has ended{f' ({how})' if how else ''}" for rank, how in told)
    return tuple(culprit(node_of(case.history, case.job, rank.pid)) for rank in ended), "".join(words)


def missing(present: list[int], seen: int, size: int | None) -> list[int]:
    """The ranks that are not here, where all that are have their numbers; else none."""
    ranks = sorted(set(range(size or 0)) - set(present))
    return ranks if len(ranks) == (size or 0) - seen else []


def absent(present: list[int], seen: int, size: int) -> str:
    """That some have not come, in words."""
    where = "not on this machine or not there at all"
    ranks = missing(present, seen, size)
    if not ranks or len(ranks) > MOST_NAMED:
        return f"{size - seen} of {size} ranks are {where}"
    named = ", ".join(map(str, ranks))
    return f"rank {named} of {size} is {where}" if len(ranks) == 1 else f"ranks {named} of {size} are {where}"
