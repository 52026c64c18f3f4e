"""Which ranks of a job have not come, by the numbers of those that have, and what these wait for."""

from collections.abc import Collection
from itertools import islice

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.moving.arriving import waited_on
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.roles.rank_gaps import RankGaps
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import OF_GLOO
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.verdict import Culprit
from perfwatch_probes.readings import Descriptor, Thread

MOST_NAMED = 8
GLOO_CONNECTIONS = "gloo_tcp"  # the thread that carries what goes over them (gloo, transport/tcp/loop.cc)


def blamed(case: Case, ranks: Collection[int]) -> tuple[Culprit, ...]:
    """The ranks that should be here; of a job on several machines, or one that is not seen whole, nobody knows. None waits."""
    here = {rank.process.local_world_size for rank in case.ranks}
    elsewhere = any(size is not None and size < (case.job.world_size or 0) for size in here)
    return (
        ()
        if elsewhere or case.lacks("ranks")
        else tuple(Culprit(pid=0, rank=rank) for rank in islice(ranks, MOST_NAMED))
    )


def departed(case: Case) -> tuple[tuple[Culprit, ...], str]:
    """The ranks that have ended while others are here, and that in words: ``; rank 2 (pid 7) has ended (exited with code 0)``."""
    ended = [rank for rank in case.job.ranks if not rank.alive][:MOST_NAMED]
    told = ((rank, how_it_ended(case.history, rank.pid)) for rank in ended)
    words = (f"; rank {rank.rank} (pid {rank.pid}) has ended{f' ({how})' if how else ''}" for rank, how in told)
    return tuple(culprit(node_of(case.history, case.job, rank.pid)) for rank in ended), "".join(words)


def _lead_nowhere_else(case: Case) -> bool:
    """Whether every connection of gloo's that was seen leads to a rank that is here: it keeps one to each that lives."""
    history = case.history
    threads = (
        seen.reading
        for rank in case.ranks
        for key in history.of(Thread, rank.pid)
        if (seen := history.latest(Thread, *key))
    )
    loops = [(one.pid, one.tid) for one in threads if one.name.startswith(GLOO_CONNECTIONS)]
    watched = {(pid, fd) for pid, tid in loops for fd in waited_on(history, pid, tid, WINDOW_SECONDS)}
    files = [history.latest(Descriptor, *key) for key in watched]
    sockets = [file.reading.socket for file in files if file is not None and file.reading.socket is not None]
    established = [one for one in sockets if one.state == "ESTABLISHED"]
    return bool(sockets) and all(case.job.members.keys() & one.peer_pids for one in established)


def missing(present: list[int], seen: int, size: int | None) -> RankGaps:
    """The ranks that are not here, where all that are have their numbers; else none."""
    ranks = RankGaps(present, size)
    return ranks if len(ranks) == (size or 0) - seen else RankGaps((), 0)


def have_met(case: Case) -> bool:
    """Whether all ranks were there once: torch makes gloo's workers as soon as each is connected to every other (ProcessGroupGloo.cpp)."""
    threads = (case.history.latest(Thread, *key) for rank in case.ranks for key in case.history.of(Thread, rank.pid))
    return any(one is not None and one.reading.name.startswith(OF_GLOO) for one in threads)


def absent(case: Case, present: list[int], seen: int, size: int) -> str:
    """That some are not there, in words: have not come, or were there and are gone."""
    where = "not on this machine or not there at all"
    if unseen := case.lacks("ranks"):
        where = f"not seen here: {unseen.reason}"
    elif have_met(case):
        where = "gone since they met" + ("" if _lead_nowhere_else(case) else ", or where it cannot be seen from here")
    ranks = missing(present, seen, size)
    if not ranks or len(ranks) > MOST_NAMED:
        return f"{size - seen} of {size} ranks are {where}"
    named = ", ".join(map(str, ranks))
    return f"rank {named} of {size} is {where}" if len(ranks) == 1 else f"ranks {named} of {size} are {where}"


def awaited(case: Case, chain: Chain) -> str:
    """What a rank waits for, where none is seen to stand elsewhere."""
    if chain.end.detail == "store":
        return "a key in the store that nobody has set"
    if not whole(case):
        return "the other ranks to appear"
    places: dict[str, int | None] = {}
    for rank in case.ranks:
        names = rank.process.environment
        places.setdefault(f"{names.get('MASTER_ADDR', '?')}:{names.get('MASTER_PORT', '?')}", rank.rank)
    apart = ", ".join(f"rank {rank} at {place}" for place, rank in list(places.items())[:MOST_NAMED])
    told = f", and they look for each other at different places: {apart}" if len(places) > 1 else ""
    return f"the others, though all {len(case.ranks)} ranks are here{told}"


def whole(case: Case) -> bool:
    """Whether all ranks that the job says it has are seen, and it says how many."""
    return case.job.world_size is not None and len(case.ranks) >= case.job.world_size
