"""Exchanges of mpi4py: compiled code without a frame of its own, in which a rank that waits for the others spins at a full core.

That a thread runs is no progress there, and that it stays in one line is no standstill: many short exchanges look the same.
"""

from collections.abc import Sequence

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.memory import GUESSED
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.absence import CAUSE, listed, rank_of
from perfwatch.triage.ranks.mpi_calls import called
from perfwatch.triage.roles.job import Member
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import show
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Alternative, Culprit, Finding
from perfwatch_probes.readings import SourceLine

MISMATCHED = "mismatched_collective"
COLLECTIVES = frozenset(name.lower() for name in MPI_COLLECTIVES)  # mpi4py has each twice: for buffers, and for objects
SENDS = frozenset({"send", "ssend", "rsend"})  # those of them that may wait for the receiver
ALL_SEND = "every rank sends and none receives"
SHOWN = 4  # ranks whose lines a summary tells
RECEIVES = frozenset({"recv", "probe", "mprobe"})


def exchange(case: Case, chain: Chain) -> SourceLine | None:
    """The line of a rank among several that is in an exchange, as its text tells; None where it is not, or that was not read."""
    return _line(case, chain)


def left_behind(case: Case, gone: Sequence[Member]) -> Finding | None:
    """That ranks stay in a collective after another one has ended; it may be one of a communicator that this one was not in."""
    waiting = [chain for chain in case.still_chains if _line(case, chain, MPI_COLLECTIVES)]
    line = _line(case, waiting[0], MPI_COLLECTIVES) if waiting and gone else None
    if line is None:
        return None
    lost = gone[0]
    ranks = listed([rank_of(chain) for chain in waiting])
    found = hung(
        case,
        CAUSE,
        waiting[0],
        owner="user_code",
        summary=f"rank {lost.rank} (pid {lost.pid}) is gone and {ranks} for it: {line.text.strip()[:80]}",
        patience=temporal(case),
        ceiling=GUESSED,
        evidence=(case.saw("process", f"rank {lost.rank}", "is gone", f"pid {lost.pid} has ended", "alive"),),
        next=("look at what that rank printed last: did it leave a loop earlier than the others?",),
    )
    return msgspec.structs.replace(found, culprits=(Culprit(pid=lost.pid, rank=lost.rank),))


def at_odds(case: Case) -> Finding | None:
    """That all ranks stand in exchanges that cannot meet: all send, all receive, or they differ.

    Only where steps were counted and none comes any more: without a count, many short exchanges look the same.
    """
    chains = [case.chains[rank.pid] for rank in case.ranks if rank.pid in case.chains]
    lines = [line for chain in chains if _stays(case, chain) and (line := _line(case, chain)) is not None]
    if not lines or len(lines) < len(case.job.ranks) or not case.job.covered:
        return None
    calls = [frozenset(name.lower() for name in called(line, case.job)) for line in lines]
    how = _cannot_meet(calls)
    if how is None:
        return None
    ago = [clock.ago_seconds or 0.0 for rank in case.ranks if (clock := case.steps(rank)) is not None]
    places = [
        f"{line.text.strip()[:80]} at {show(chain.end.node.frame)}" for chain, line in zip(chains, lines, strict=True)
    ]
    parts = (
        [f"rank {rank_of(chain)} is in {place}" for chain, place in zip(chains, places, strict=True)]
        if len(set(places)) > 1
        else places[:1]
    )
    found = hung(
        case,
        MISMATCHED,
        chains[0],
        owner="user_code",
        summary=f"{how}: {'; '.join(parts[:SHOWN])}",
        patience=temporal(case),
        silent=min(ago),
        evidence=tuple(
            case.saw(
                "collective", f"rank {rank_of(chain)}", f"is in {place}", f"no step for {min(ago):.1f} s", "returns"
            )
            for chain, place in zip(chains, places, strict=True)
        )[:SHOWN],
        ceiling=GUESSED,
        alternatives=(Alternative(cause=CAUSE, refuted_by="every rank is in an exchange"),),
        next=("Sendrecv, or Isend before Recv: a Send may wait for its receiver",)
        if how is ALL_SEND
        else ("compare the named lines: which condition sends the ranks apart?",),
    )
    return msgspec.structs.replace(found, culprits=tuple(one for chain in chains for one in chain.culprits()))


def _stays(case: Case, chain: Chain) -> bool:
    """Whether a rank is at one line, and its next step should have come long ago."""
    steps = case.progress[chain.start.pid].steps
    return chain.end.node.motion.distinct <= 1 and steps is not None and steps.late


def _cannot_meet(calls: Sequence[frozenset[str]]) -> str | None:
    if all(names <= SENDS for names in calls):
        return ALL_SEND
    if all(names <= RECEIVES for names in calls):
        return "every rank waits to receive and none sends"
    apart = len(set(calls)) > 1 and any(names <= COLLECTIVES for names in calls)
    return "the ranks wait for each other in different exchanges" if apart else None


def _line(case: Case, chain: Chain, only: frozenset[str] | None = None) -> SourceLine | None:
    alone = max(len(case.job.ranks), case.job.world_size or 1) < 2
    if alone or chain.end.kind != "native" or chain.end.node.stack is None:
        return None
    line = calling_line(case.history, chain.end.node.stack)
    calls = called(line, case.job) if line is not None else frozenset()
    return line if (calls if only is None else calls & only) else None
