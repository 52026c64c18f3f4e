"""Ranks that wait for each other, each in a call of another group, where only one of the two groups shows who has come to it.

NCCL counts who is behind in its groups; gloo's groups it does not know. So the rank that the others wait for is behind, and
yet in a call: its stack names one that the others do not wait in, or gloo carries one out while its card idles, or its card holds
a kernel that only polls while another group of the same ranks stands level. What it waits for are the ranks that wait for it: time
does not heal that.
"""

from dataclasses import dataclass

import msgspec

from perfwatch.triage.cards.gpu import regime, regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.flows import SILENT_BYTES_PER_SECOND
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.absence import in_collective, rank_of, way
from perfwatch.triage.ranks.traffic import between_ranks
from perfwatch.triage.ranks.waitgraph import WaitGraph, wait_graph
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.native_waits import reduces
from perfwatch.triage.words.frames import collective_name, show
from perfwatch.verdict import Alternative, Culprit, Evidence, Outcome

CAUSE = "mismatched_collective"
COUNTED = 0.9  # the others' call is known from counts alone
INFERRED = 0.75  # a kernel of its own that never ends would look the same, and would have stopped the job just so
SHOWN = 8
KINDS = ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "send", "recv")
BARRIER = "barrier"  # NCCL's is an all_reduce


@dataclass(frozen=True)
class _Behind:
    """A rank that the others wait for: which call it is in instead, and how sure that is."""

    chain: Chain
    told: str
    ceiling: float


def in_other_groups(case: Case) -> Outcome:
    """Fires where all ranks are in calls, and those that are behind in one group stand in a call of another."""
    graph = wait_graph(case)
    if graph is None or not graph.edges or not graph.ends or not case.job.covered:
        return None
    waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))]
    ends = [case.chains.get(seat.pid or 0) for seat in graph.ends]
    behind = [one for chain in ends if chain is not None and (one := _behind(case, graph, chain, waiting))]
    if not waiting or len(behind) < len(ends) or len(waiting) + len(behind) < len(case.ranks):
        return None
    if not all(in_collective(case, chain) for chain in waiting) or _travels(case):
        return None
    first = behind[0]
    op = next((graph.calls[rank_of(chain)] for chain in waiting if rank_of(chain) in graph.calls), "a collective")
    late = ", ".join(str(rank_of(one.chain)) for one in behind[:SHOWN])
    parts = [f"{_ranks(waiting)} in {op} at {_line(waiting[0])}, to which rank {late} has not come"]
    parts += [f"rank {rank_of(one.chain)} is {one.told} at {_line(one.chain)}" for one in behind[:SHOWN]]
    silent = min(graph.seconds, *(chain.end.silent_seconds or 0.0 for chain in (*waiting, *(b.chain for b in behind))))
    found = hung(
        case,
        CAUSE,
        first.chain,
        owner="user_code",
        summary=f"the ranks wait for each other in calls of different groups: {'; '.join(parts)}",
        patience=STRUCTURAL_SECONDS,
        silent=silent,
        ceiling=min(COUNTED if graph.source == "nccl_ras" else 1.0, *(one.ceiling for one in behind)),
        evidence=(*graph.evidence(case), *(_seen(case, one) for one in behind[:SHOWN])),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="the rank that is behind is in a call itself"),
            Alternative(
                cause="stuck_kernel",
                refuted_by="a stack names the call"
                if first.ceiling > INFERRED
                else "not refuted: a kernel of its own that does not end would look the same; the flight recorders tell",
            ),
        ),
        next=("compare the named lines: which condition sends the ranks apart?",),
    )
    blamed = [*(one.chain for one in behind), *waiting]
    return msgspec.structs.replace(
        found,
        culprits=tuple(Culprit(pid=one.start.pid, rank=one.start.rank, frame=_line(one)) for one in blamed[:SHOWN]),
        wait_chain=tuple(
            link
            for chain in (*waiting, *(one.chain for one in behind))
            for link in way(case, chain, graph.calls.get(rank_of(chain), ""))
        ),
    )


def _behind(case: Case, graph: WaitGraph, chain: Chain, waiting: list[Chain]) -> _Behind | None:
    """What a rank that others wait for is in instead; None where that is not a call of another group."""
    if chain.end.kind == "collective" and chain.end.still and chain.end.node.stack is not None:
        name = collective_name(chain.end.node.stack)
        others = {_kind(graph.calls.get(rank_of(one), "")) for one in waiting}
        if name is None or not _kind(name):
            return None
        if _kind(name) not in others | {""}:
            return _Behind(chain, f"in {name}", 1.0)
        # Of the same kind: perhaps the very call, not counted yet, where it is not another library's.
        return _Behind(chain, f"in {name} over gloo", 1.0) if _over_gloo(case, chain.start.pid) else None
    if chain.end.kind != "gpu" or not chain.end.detail or not in_sync(case.history, chain.end.node.stack):
        return None
    card, certain = regime(case.history, chain.end.detail), cards_of(case.history, chain.start.pid).certain
    if not card.polls or card.computes or not certain or not _level_elsewhere(graph, chain, waiting):
        return None
    return _Behind(chain, "in a call of another group, as far as its card tells, and waits for it", INFERRED)


def _over_gloo(case: Case, pid: int) -> bool:
    """Whether a collective of gloo's is under way in a rank, and its cards have nothing to do: one of NCCL's would hold a kernel."""
    cards = regimes(case.history, pid)
    return bool(cards) and all(card.kind == "idle" for card in cards) and reduces(case.history, pid)


def _level_elsewhere(graph: WaitGraph, chain: Chain, waiting: list[Chain]) -> bool:
    """Whether another group, in which this rank and one that waits for it are, has been called equally often by all."""
    ranks = {rank_of(one) for one in waiting}
    return any(
        not one.behind
        and not one.lost
        and rank_of(chain) in (members := {seat.rank for seat in one.seats})
        and bool(members & ranks)
        and all(seat.reached > 0 for seat in one.seats)
        for one in graph.standings
    )


def _kind(name: str) -> str:
    """The kind of call by NCCL's names; empty for one that is none of them."""
    return "all_reduce" if BARRIER in name else next((kind for kind in KINDS if kind in name), "")


def _travels(case: Case) -> bool:
    """Whether anything travels between the ranks, or nobody knows: large objects take their time over gloo's connections."""
    moved = between_ranks(case, WINDOW_SECONDS)
    return moved is None or moved > SILENT_BYTES_PER_SECOND


def _seen(case: Case, one: _Behind) -> Evidence:
    if one.chain.end.kind == "collective":
        observed = f"{_line(one.chain)} for {one.chain.end.silent_seconds or 0.0:.1f} s"
        return case.saw("collective", f"rank {rank_of(one.chain)}", f"is {one.told}", observed, "the others' call")
    card = regime(case.history, one.chain.end.detail)
    return case.saw(
        card.source,
        f"rank {rank_of(one.chain)}",
        "its card holds a kernel that only polls",
        f"{card.shown()}, for {one.chain.end.silent_seconds or 0.0:.1f} s",
        "the others' call, to which it has not come, holds their cards alone",
    )


def _line(chain: Chain) -> str | None:
    return show(chain.start.frame or chain.end.node.frame)


def _ranks(chains: list[Chain]) -> str:
    named = ", ".join(str(rank_of(chain)) for chain in chains[:SHOWN])
    more = f" and {len(chains) - SHOWN} more" if len(chains) > SHOWN else ""
    return f"rank {named} is" if len(chains) == 1 else f"ranks {named}{more} are"
