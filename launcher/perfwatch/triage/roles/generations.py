"""Which ranks are of an earlier generation: torchrun ends all of its ranks and starts them anew, perhaps as others.

When a node goes or comes the world has another size, and those that stay have other numbers: the ranks 2 and 3 of four become 0
and 1 of two. Nobody takes the place of the former ones, and nobody waits for them.
"""

from collections.abc import Iterable

from perfwatch_probes.bounds import count
from perfwatch_probes.readings import Process

COUNT = "TORCHELASTIC_RESTART_COUNT"  # torchrun tells each rank how many generations failed before it; a change of nodes is no failure


def former(dead: Iterable[Process], alive: Iterable[Process]) -> frozenset[int]:
    """Of the ranks that have ended those whose launcher has started another generation since, by their pids."""
    newest: dict[int, Process] = {}
    for one in alive:
        known = newest.get(one.parent_pid)
        if one.rank is not None and (known is None or one.start_ticks > known.start_ticks):
            newest[one.parent_pid] = one
    return frozenset(
        one.pid
        for one in dead
        if one.rank is not None and (later := newest.get(one.parent_pid)) is not None and _follows(later, one)
    )


def _follows(later: Process, one: Process) -> bool:
    return later.start_ticks > one.start_ticks and (
        later.world_size != one.world_size or _restarts(later) > _restarts(one)
    )


def _restarts(process: Process) -> int:
    return count(process.environment.get(COUNT)) or 0
