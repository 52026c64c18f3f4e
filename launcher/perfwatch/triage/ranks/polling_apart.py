"""Every rank waits for its card, whose kernel only polls, and they stand at different lines: behind calls that do not belong together.

Sends and receives that wait for each other look so where no flight recorder can be asked: NCCL's counts leave them out. For which call each
rank waits nobody sees, so the full patience is given, and it is never called sure. Where the counts say that some have called a
collective to which the others have not come, and stand, these do not come: their cards wait as well, and for nobody who computes.
"""

import msgspec

from perfwatch.triage.cards.gpu import polls, regimes
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.flows import SILENT_BYTES_PER_SECOND
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.traffic import between_ranks
from perfwatch.triage.ranks.waitgraph import WaitGraph, wait_graph
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.frames import show, user_frames
from perfwatch.verdict import Alternative, Finding

CEILING = 0.7  # a kernel of the program's own in one rank, or a wedge behind two lines, look the same
WAITS = ("gpu", "collective")  # who waits for the gradients' reduction waits for its card, too
ARMED = "perfwatch run -- ... the next time: the flight recorder that it arms says in which call each rank is"


def polling_apart(case: Case, cause: Cause) -> Finding | None:
    """Fires on all ranks of a job alike; none where a card does anything but poll, or anything travels between them."""
    chains = tuple(case.chains.values())
    if len(chains) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    lines = _lines(chains)
    if len(set(lines)) < 2 or any(
        chain.end.kind not in WAITS or not polls(case.history, chain.start.pid) for chain in chains
    ):
        return None
    moved = between_ranks(case, WINDOW_SECONDS)
    if moved is None or moved > SILENT_BYTES_PER_SECOND:
        return None
    silent = min(chain.end.silent_seconds or 0.0 for chain in chains)
    uneven = _uneven(case, chains)
    where = [f"rank {chain.start.rank} at {line}" for chain, line in zip(chains, lines, strict=True)]
    parts = "; ".join([*where, *([] if uneven is None else [_reached(uneven)])])
    found = hung(
        case,
        cause.name,
        chains[0],
        owner=cause.owner,
        summary=f"every rank waits for its card, whose kernel only polls, and nothing travels between them: {parts}",
        patience=temporal(case) if uneven is None else STRUCTURAL_SECONDS,
        silent=silent if uneven is None else min(silent, uneven.seconds),
        ceiling=CEILING,
        evidence=(
            *(() if uneven is None else uneven.evidence(case)),
            *(
                case.saw("gpm", name_of(case.history, card.uuid), "a kernel only polls", card.shown(), "data moves")
                for chain in chains[:4]
                for card in regimes(case.history, chain.start.pid)[:1]
            ),
        ),
        alternatives=(Alternative(cause="wedged_collective", refuted_by="the ranks stand at different lines"),),
        next=(ARMED,),
    )
    return msgspec.structs.replace(
        found,
        culprits=tuple(
            msgspec.structs.replace(one, frame=line)
            for chain, line in zip(chains, lines, strict=True)
            for one in chain.culprits()
        ),
        wait_chain=tuple(link for chain in chains for link in chain.links),
    )


def _uneven(case: Case, chains: tuple[Chain, ...]) -> WaitGraph | None:
    """What the counts tell, where by them each of the ranks waits for another in a collective, or is waited for."""
    graph = wait_graph(case)
    if graph is None or not graph.edges or len(graph.edges) + len(graph.ends) < len(chains):
        return None
    return graph if {seat.pid for seat in graph.ends} <= {chain.start.pid for chain in chains} else None


def _reached(graph: WaitGraph) -> str:
    calls = sorted(set(graph.calls.values()))
    late = ", ".join(seat.name for seat in graph.ends[:4])
    called = calls[0] if calls else "a collective"
    return f"{late} has not come to {called}: it is in a send or receive, which NCCL does not count, or in no call"


def _lines(chains: tuple[Chain, ...]) -> list[str | None]:
    """Where each rank stands; where all stand in the same helper, the innermost of its callers that are not the same."""
    standing = [_standing(chain) for chain in chains]
    written = [user_frames(node.stack) if node.stack is not None else () for node in standing]
    apart = (frames for frames in zip(*written, strict=False) if len(set(frames)) > 1)
    return list(map(show, next(apart, [node.frame for node in standing])))


def _standing(chain: Chain) -> Node:
    """The thread that waits for the card, if it runs Python: of torch's engine the one that asked it."""
    return chain.end.node if chain.end.node.frame is not None else chain.start
