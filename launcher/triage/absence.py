"""What is said of ranks that wait in a collective, and of one that is not in it and cannot be looked at."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.collectives import Seat
from perfwatch.triage.gpu import regime
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, temporal
from perfwatch.triage.verdict import Culprit, Outcome
from perfwatch.triage.waitgraph import WaitGraph

CAUSE = "stalled_collective"
COUNTED = 0.9  # the most that is said of a rank that only the others' counts tell about
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here
SHOWN = 8
UNHEARD = ("dead", "unresponsive", "missing")


def rank_of(chain: Chain) -> int:
    """Its rank in the job; -1 where it has none."""
    return -1 if chain.start.rank is None else chain.start.rank


def in_collective(case: Case, chain: Chain) -> bool:
    """Whether a rank stands in a collective, or waits for its GPU, on which a kernel waits that moves nothing."""
    if chain.end.kind == "gpu" and chain.end.detail:
        card = regime(case.history, chain.end.detail)
        return card.kind == "spin" and not card.computes
    return chain.end.kind == "collective"


def listed(ranks: list[int]) -> str:
    """``ranks 0, 2 wait``."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank {shown} waits" if len(ranks) == 1 else f"ranks {shown} wait"


def call(case: Case, graph: WaitGraph | None, waiting: list[Chain]) -> str:
    """What they wait in, as the recorders name it; failing that, as the stacks do."""
    named = [graph.calls.get(rank_of(chain), "") for chain in waiting] if graph is not None else []
    stands = waiting[0].awaited if in_collective(case, waiting[0]) else "the collective that the others are in"
    return next((name for name in named if name), stands)


def elsewhere(case: Case, waiting: list[Chain], graph: WaitGraph, seat: Seat) -> Outcome:
    """The rank at the end is on another machine, may not be looked at, or is gone: only the others' counts tell about it.

    What it does is not known: it may write a checkpoint. So it is given as long as anything that time may heal.
    """
    if not waiting:
        return None
    lost = seat.state in UNHEARD
    gone = lost and not seat.host and seat.pid is None and len(case.ranks) < (case.job.world_size or 0)
    found = hung(
        case,
        CAUSE,
        waiting[0],
        owner="user_code",
        summary=f"{seat.name} never joined {call(case, graph, waiting)}: it has called less often than the others, and no count "
        f"grows{', and RAS does not hear from it' if lost else ''}; {listed([rank_of(chain) for chain in waiting])} for it",
        patience=GONE_SECONDS if gone else STRUCTURAL_SECONDS if lost else temporal(case),
        silent=graph.seconds,
        evidence=graph.evidence(case),
        ceiling=COUNTED,
        next=(_next(case, seat, gone),),
    )
    links = tuple(link for chain in waiting for link in chain.links)
    culprit = Culprit(pid=seat.pid or 0, rank=seat.rank, host=seat.host or None)
    return msgspec.structs.replace(found, culprits=(culprit,), wait_chain=links)


def _next(case: Case, seat: Seat, gone: bool) -> str:
    if seat.pid in case.chains:
        return f"sudo $(command -v perfwatch) attach {seat.pid}: its own stack says why"
    if gone:
        return "no process of that rank is here any more: look at what it printed last, and for the OOM killer in the kernel log"
    return f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"
