"""What is said of ranks that wait in a collective, and of one that is not in it and cannot be looked at."""

import msgspec

from perfwatch.triage.cards.gpu import regime
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, silent_seconds
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.standing import UNHEARD, Seat
from perfwatch.triage.ranks.waitgraph import WaitGraph
from perfwatch.triage.waits.chain import Chain
from perfwatch.verdict import Culprit, Finding, Link, Outcome

CAUSE = "stalled_collective"
COUNTED = 0.9  # the most that is said of a rank that only the others' counts tell about
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here
SHOWN = 8
RUNS = ("python", "native")  # what a thread that spins for its card looks like, where the card itself does not tell


def rank_of(chain: Chain) -> int:
    """Its rank in the job; -1 where it has none."""
    return -1 if chain.start.rank is None else chain.start.rank


def in_collective(case: Case, chain: Chain) -> bool:
    """Whether a rank stands in a collective, or waits for its GPU, on which a kernel waits that moves nothing."""
    if chain.end.kind == "gpu" and chain.end.detail:
        card = regime(case.history, chain.end.detail)
        return (card.kind == "spin" and not card.computes) or card.polls
    return chain.end.kind == "collective"


def listed(ranks: list[int]) -> str:
    """``ranks 0, 2 wait``."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank {shown} waits" if len(ranks) == 1 else f"ranks {shown} wait"


def call(case: Case, graph: WaitGraph | None, waiting: list[Chain]) -> str:
    """What they wait in, as the recorders name it; failing that, as the stacks do."""
    named = [graph.calls.get(rank_of(chain), "") for chain in waiting] if graph is not None else []
    stands = waiting[0].awaited if waiting[0].end.kind == "collective" else "the collective that the others are in"
    return next((name for name in named if name), stands)


def waits_as(case: Case, chain: Chain, call: str = "") -> str:
    """How a rank waits that is in a collective (``call``), as records, counts or its peers tell, whatever it seems to do."""
    if chain.end.kind == "gpu":
        return f"for {chain.awaited}"
    if chain.end.kind not in RUNS:
        return f"in {chain.awaited}"
    where = call or "a collective"
    return f"for its GPU, in {where}" if cards_of(case.history, chain.start.pid).uuids else f"in {where}"


def way(case: Case, chain: Chain, call: str = "") -> tuple[Link, ...]:
    """The links of such a rank: a thread that spins for its card does not wait for nothing."""
    if chain.end.kind not in RUNS:
        return chain.links
    end, told = (chain.end.node.pid, chain.end.node.tid), waits_as(case, chain, call).partition(" ")[2]
    return tuple(
        msgspec.structs.replace(link, waits_for=told) if (link.pid, link.tid) == end else link for link in chain.links
    )


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
        summary=f"{seat.name} {_why(lost, gone, call(case, graph, waiting))}; {listed([rank_of(chain) for chain in waiting])} for it",
        patience=GONE_SECONDS if gone else STRUCTURAL_SECONDS if lost else temporal(case),
        silent=graph.seconds,
        evidence=graph.evidence(case),
        ceiling=COUNTED,
        next=(_next(case, seat, gone),),
    )
    links = tuple(link for chain in waiting for link in way(case, chain, graph.calls.get(rank_of(chain), "")))
    culprit = Culprit(pid=seat.pid or 0, rank=seat.rank, host=seat.host or None)
    return msgspec.structs.replace(found, culprits=(culprit,), wait_chain=links)


def _why(lost: bool, gone: bool, op: str) -> str:
    if gone:
        return f"is gone, and never joined {op}: no process of it is here any more, and RAS does not hear from it"
    unheard = ", and RAS does not hear from it" if lost else ""
    return f"never joined {op}: it has called less often than the others, and no count grows{unheard}"


def ended(case: Case, waiting: Chain, pid: int, rank: int | None, graph: WaitGraph | None) -> Finding:
    """A rank of this host was seen to end while another one waits for it."""
    found = hung(
        case,
        CAUSE,
        waiting,
        owner="user_code",
        summary=f"rank {rank} (pid {pid}) is gone and rank {waiting.start.rank} waits for it in {call(case, graph, [waiting])}",
        patience=STRUCTURAL_SECONDS,
        silent=None if graph is None else max(graph.seconds, silent_seconds(case, waiting)),
        evidence=(
            case.saw("process", f"rank {rank}", "is gone", f"pid {pid} has ended", "alive"),
            *(graph.evidence(case) if graph is not None else ()),
        ),
        next=("dmesg | grep -i 'killed process'",),
    )
    op = call(case, graph, [waiting])
    return msgspec.structs.replace(found, culprits=(Culprit(pid=pid, rank=rank),), wait_chain=way(case, waiting, op))


def _next(case: Case, seat: Seat, gone: bool) -> str:
    if seat.pid in case.chains:
        return f"sudo $(command -v perfwatch) attach {seat.pid}: its own stack says why"
    if gone:
        return "no process of that rank is here any more: look at what it printed last, and for the OOM killer in the kernel log"
    return f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"


def unread(case: Case, chain: Chain) -> bool:
    """Whether nobody could look at what a rank does: neither its stack nor what it is blocked in."""
    node = chain.end.node
    seen = node.stack is not None or node.wait is not None or case.profile(case.job.members[chain.start.pid]).samples
    return not seen and chain.end.kind not in ("dead", "stopped")
