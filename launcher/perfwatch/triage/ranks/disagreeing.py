"""What is said of ranks that the flight recorders show in different calls, or in a ring of calls to which the next one has not come."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.absence import rank_of, way
from perfwatch.triage.ranks.agreement import Disagreement, disagreement
from perfwatch.triage.ranks.collectives import shown
from perfwatch.triage.ranks.point_to_point import ways
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Operation

CAUSE = "mismatched_collective"
GOES_ON = 0.9
COUNTED = 0.9  # by counts alone: which call each rank is in is not told
SHOWN = 8
NEXT = ("compare the named lines: which condition sends the ranks apart?",)


def by_records(case: Case) -> Outcome:
    """One sequence number that means different calls: a hang where it is still open, mixed-up data where training went on."""
    found = disagreement(case)
    if found is None:
        return None
    alike = Counter(_meant(one) for _, _, one in found.calls)
    odd_first = sorted(found.calls, key=lambda call: alike[_meant(call[2])])
    parts = "; ".join(f"rank {rank}: {shown(one)}{_from(one)}" for rank, _, one in odd_first[:SHOWN])
    fewest = min(alike.values())
    odd = [call for call in odd_first if alike[_meant(call[2])] == fewest and 2 * fewest < len(odd_first)]
    culprits = tuple(
        Culprit(pid=pid, rank=rank, frame=show(one.frames[0]) if one.frames else None)
        for rank, pid, one in odd or odd_first
    )
    if found.over and any(one.kind == "still" for one in case.progress.values()):
        return None  # it stands for another reason, which the rules about hangs know better
    if found.over or case.moving:
        return Finding(
            cause=CAUSE,
            state="slow",
            summary=f"the ranks of group {found.group} called operation {found.sequence} with different {found.what}s, and "
            f"NCCL went on: what they got is garbage ({parts})",
            confidence=GOES_ON,
            owner="user_code",
            culprits=culprits,
            evidence=_evidence(case, found),
            alternatives=(Alternative(cause="stalled_collective", refuted_by="the ranks go on"),),
            next=NEXT,
            lost_share=1.0,
        )
    calls = {rank: shown(one) for rank, _, one in found.calls}
    chains = [chain for chain in case.chains.values() if chain.start.rank in calls]
    if not chains:
        return None
    waiting = min(chains, key=lambda chain: chain.end.silent_seconds or 0.0)
    result = hung(
        case,
        CAUSE,
        waiting,
        owner="user_code",
        summary=f"the ranks of group {found.group} mean different {found.what}s by operation {found.sequence}: {parts}",
        patience=STRUCTURAL_SECONDS,
        evidence=_evidence(case, found),
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every rank is in a collective"),),
        next=NEXT,
    )
    return msgspec.structs.replace(
        result,
        culprits=culprits,
        wait_chain=tuple(link for chain in chains for link in way(case, chain, calls.get(rank_of(chain), ""))),
    )


def in_a_ring(case: Case) -> Outcome:
    """Ranks that wait for each other, each in another group."""
    graph = wait_graph(case)
    if graph is None or not graph.cycle:
        return None
    chains = [chain for chain in case.chains.values() if chain.start.rank in graph.cycle]
    if not chains:
        return None
    parts = "; ".join(
        f"rank {rank} is in {graph.calls.get(rank, 'a collective')}"
        + (f" at {show(graph.frames[rank])}" if rank in graph.frames else "")
        + f", to which {_named(graph.edges[rank][:SHOWN])} {'has' if len(graph.edges[rank]) == 1 else 'have'} not come"
        for rank in graph.cycle[:SHOWN]
    )
    why = ways([graph.calls.get(rank, "") for rank in graph.cycle])
    why = why or "one makes a call more than the next, or in another order"
    stood = min(chain.end.silent_seconds or 0.0 for chain in chains)
    result = hung(
        case,
        CAUSE,
        chains[0],
        owner="user_code",
        summary=f"the ranks wait for each other in a ring, for {why}: {parts}",
        patience=STRUCTURAL_SECONDS,
        silent=max(graph.seconds, stood if graph.source == "flight_recorder" else 0.0),
        ceiling=1.0 if graph.source == "flight_recorder" else COUNTED,
        evidence=graph.evidence(case),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="nobody is at the end: the waiting is a ring"),
        ),
        next=NEXT,
    )
    stands = {chain.start.rank: chain.start.frame or chain.end.node.frame for chain in chains}
    culprits = tuple(
        Culprit(pid=graph.seats[rank].pid or 0, rank=rank, frame=show(graph.frames.get(rank) or stands.get(rank)))
        for rank in graph.cycle
    )
    return msgspec.structs.replace(
        result,
        culprits=culprits,
        wait_chain=tuple(link for chain in chains for link in way(case, chain, graph.calls.get(rank_of(chain), ""))),
    )


def _meant(one: Operation) -> tuple[str, str, int]:
    return one.name, one.dtypes, one.input_elements


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _from(operation: object) -> str:
    frames = getattr(operation, "frames", ())
    return f" at {show(frames[0])}" if frames else ""


def _evidence(case: Case, found: Disagreement) -> tuple[Evidence, ...]:
    return tuple(
        case.saw(
            "flight_recorder",
            f"rank {rank}",
            f"calls as operation {found.sequence} of group {found.group}",
            f"{shown(one)} ({one.state})",
            "the same in every rank",
            found.at,
        )
        for rank, _, one in found.calls[:SHOWN]
    )
