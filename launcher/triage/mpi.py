"""Exchanges of mpi4py: compiled code without a frame of its own, in which a rank that waits for the others spins at a full core.

That a thread runs is no progress there, and that it stays in one line is no standstill: many short exchanges look the same.
"""

from collections.abc import Sequence

import msgspec

from perfwatch.probes.readings import SourceLine
from perfwatch.triage.absence import CAUSE, listed, rank_of
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.code import calling_line
from perfwatch.triage.hang import hung, temporal
from perfwatch.triage.job import Member
from perfwatch.triage.memory import GUESSED
from perfwatch.triage.mpi_calls import called
from perfwatch.triage.verdict import Culprit, Finding
from perfwatch.triage.vocabulary import MPI_COLLECTIVES


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


def _line(case: Case, chain: Chain, only: frozenset[str] | None = None) -> SourceLine | None:
    alone = max(len(case.job.ranks), case.job.world_size or 1) < 2
    if alone or chain.end.kind != "native" or chain.end.node.stack is None:
        return None
    line = calling_line(case.history, chain.end.node.stack)
    calls = called(line, case.job) if line is not None else frozenset()
    return line if (calls if only is None else calls & only) else None
