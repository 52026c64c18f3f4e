"""Some ranks wait in a collective that another rank never joined."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.loops import COUNTED_LOOP
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks import away
from perfwatch.triage.ranks.absence import call, elsewhere, ended, in_collective, listed, rank_of, unread, waits_as, way
from perfwatch.triage.ranks.collectives import unanswered
from perfwatch.triage.ranks.ended_ranks import blamed, missed
from perfwatch.triage.ranks.exchanges import makes_group
from perfwatch.triage.ranks.leaving import leaves, left_over, over
from perfwatch.triage.ranks.mpi import left_behind
from perfwatch.triage.ranks.waitgraph import WaitGraph, wait_graph
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.bringing import may_be_answered
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.waits.releasing import held_up, partners
from perfwatch.triage.waits.sending import ask
from perfwatch.verdict import Abstention, Alternative, Finding, Missing, Outcome
from perfwatch_probes.readings import Process, Stack, Thread

CAUSE = Cause("stalled_collective", "hung", "user_code", (Process, Thread, Stack))


def judge(case: Case) -> Outcome:
    """Fires when some ranks are in a collective and the rest stand still somewhere else."""
    if max(len(case.job.ranks), case.job.world_size or 1) < 2:
        return None
    graph = wait_graph(case)
    waiting = [chain for chain in case.still_chains if in_collective(case, chain)]
    gone = missed(case, graph)
    absent = [chain for chain in case.chains.values() if not in_collective(case, chain)]
    if graph is not None and graph.edges:
        waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))] or waiting
    if graph is not None and graph.edges and not gone:
        here = [case.chains[seat.pid] for seat in graph.ends if seat.pid in case.chains]
        if any(in_collective(case, chain) for chain in here):
            return None  # behind, and yet in a collective, or in a kernel of its own: counts alone cannot say which
        unseen = [seat for seat in graph.ends if seat.pid not in case.chains or unread(case, case.chains[seat.pid])]
        if unseen and len(unseen) == len(graph.ends):
            return elsewhere(case, waiting, graph, unseen[0])
        absent = here
    if not waiting or (not absent and not gone):
        return left_behind(case, gone)
    if not case.job.covered and (graph is None or not absent):
        return Abstention(
            cause=CAUSE.name,
            missing=(
                Missing(
                    witness="ranks",
                    reason=f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine",
                    advice="run perfwatch attach on the other nodes too: the rank that is missing here may be there",
                ),
            ),
        )
    if absent and not gone and all(map(makes_group, absent)) and away.meets_nobody(case, waiting, absent):
        return None  # those who have not come are in a call themselves
    at_work = any(
        leaves(one) or (not over(one) and (away.works(case, one, away.waited(waiting)) or may_be_answered(case, one)))
        for one in absent
    )
    lost = blamed(gone, absent, graph, at_work)
    if lost is not None or at_work:
        return None if lost is None else ended(case, waiting[0], lost.pid, lost.rank, graph)
    return _absent(case, waiting, absent, graph)


def _absent(case: Case, waiting: list[Chain], absent: list[Chain], graph: WaitGraph | None) -> Finding:
    first, victims = absent[0], listed([rank_of(chain) for chain in waiting])
    op, calls = call(case, graph, waiting), graph.calls if graph is not None else {}
    left = left_over(case, first)
    roots = held_up(first.end.node, partners(case, first)) if first.end.kind == "lock" and not left else []
    holder = away.holder_waits(case, waiting, first)
    certain = holder is not None or away.for_good(case, first) or away.meets_nobody(case, waiting, absent)
    waited, stood = away.waited(waiting), None if certain else away.stood(case, first)
    silent = waited if stood is None else min(waited, stood)
    loads = away.brings_no_batch(case, first, waited)
    computes = bool(loads) or away.runs_on(case, first)  # nothing of it is flat: others wait, and it may come
    patience = temporal(case) * (COUNTED_LOOP if computes else 1.0)
    found = hung(
        case,
        CAUSE.name,
        first,
        owner=CAUSE.owner,
        summary=f"{away.named_ranks(absent)} never joined {op}: {away.why_absent(case, first, left, roots, holder)}; {victims} for it",
        patience=STRUCTURAL_SECONDS if certain else patience,
        silent=max(silent, first.end.silent_seconds or 0.0) if certain else silent,
        ceiling=1.0 if certain else away.ceiling(first, computes),
        evidence=(graph.evidence(case) if graph is not None else ())
        + tuple(
            case.saw(
                "collective",
                f"rank {chain.start.rank}",
                f"waits {waits_as(case, chain, calls.get(rank_of(chain), op))}",
                f"for {chain.end.silent_seconds or 0:.1f} s",
                "returns within a step",
            )
            for chain in waiting[:3]
        )
        + loads
        + unanswered(case),
        alternatives=(Alternative(cause="straggling_rank", refuted_by="not one collective came about meanwhile"),),
        next=(f"py-spy dump --nonblocking --pid {first.end.node.pid}", *ask(first.end)),
    )
    links = (
        tuple(link for chain in waiting for link in way(case, chain, calls.get(rank_of(chain), op))) + found.wait_chain
    )
    culprits = tuple(culprit(one) for one in left) or (
        *(culprit(one) for one in roots),
        *(one for chain in (*absent, holder) if chain is not None for one in chain.culprits()),
    )
    return msgspec.structs.replace(found, wait_chain=links, culprits=culprits)


RULES = (Rule(CAUSE, judge),)
