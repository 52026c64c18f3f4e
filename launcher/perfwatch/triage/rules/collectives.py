"""Hangs in calls between ranks: one rank never joined (stalled), the calls differ (mismatched), or all are in one (wedged)."""

from math import inf

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import state_of
from perfwatch.triage.graph.from_case import in_call
from perfwatch.triage.hang import Place, hang_between, links, listed, numbered, rank_of, silent, stacks_of, waits_as
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal
from perfwatch.triage.ranks import absentee, mismatch
from perfwatch.triage.ranks.absentee import STALLED
from perfwatch.triage.ranks.calls import leaves, over
from perfwatch.triage.ranks.groups import WaitGraph, recorder_owes, unanswered, wait_graph
from perfwatch.triage.ranks.mismatch import only_some_are_here, same_call
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.locks import held_up, partners
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.waits.other_end import ask
from perfwatch.verdict import Abstention, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes.readings import Communicator, Network, Process, Stack, Thread

WEDGED = Cause("wedged_collective", "hung", "fabric", (Process, Thread, Stack, Network))
ANSWER_SECONDS = 5.0  # more, while a recorder that can be asked has not answered: it writes within two seconds


def stalled(case: Case) -> Outcome:
    """Some ranks are in a collective, and the rest stand still somewhere else or have ended."""
    if max(len(case.job.ranks), case.job.world_size or 1) < 2:
        return None
    graph = wait_graph(case)
    waiting = [chain for chain in case.still_chains if in_call(case, chain)]
    gone = absentee.missed(case, graph)
    absent = [chain for chain in case.chains.values() if not in_call(case, chain)]
    absent = [chain for chain in absent if not absentee.is_unread(case, chain)] or absent
    if graph is not None and graph.edges:
        waiting = [chain for chain in case.chains.values() if graph.edges.get(rank_of(chain))] or waiting
    if graph is not None and graph.edges and not gone:
        here = [case.chains[seat.pid] for seat in graph.ends if seat.pid in case.chains]
        if any(in_call(case, chain) for chain in here):
            return None  # behind, and yet in a collective, or in a kernel of its own: counts alone cannot say which
        read = {chain.start.pid for chain in here if not absentee.is_unread(case, chain)}
        unseen = [seat for seat in graph.ends if seat.pid not in read]
        if unseen and not read:
            return absentee.unseen(case, waiting, graph, unseen[0])
        absent = here
    if not waiting or (not absent and not gone):
        return absentee.left_behind(case, gone)
    if not case.job.covered and (graph is None or not absent):
        lacking = only_some_are_here(case, "the rank that is missing here may be there")
        return Abstention(cause=STALLED.name, missing=(lacking,))
    at_work = any(leaves(one) or (not over(one) and absentee.comes(case, one)) for one in absent)
    lost = absentee.lost(gone, absent, graph, at_work)
    if lost is not None:
        return absentee.ended(case, waiting[0], lost, graph)
    return None if at_work else _stalled(case, waiting, absent, graph)


def _stalled(case: Case, waiting: list[Chain], absent: list[Chain], graph: WaitGraph | None) -> Finding | None:
    first, (op, places) = absent[0], absentee.calls_of(graph, waiting)
    left = absentee.left_over(case, first)
    roots = held_up(first.end.node, partners(case, first)) if first.end.kind == "lock" and not left else []
    holder, loads = absentee.holder_waits(waiting, first), absentee.brings_no_batch(case, first)
    states = [state_of(case, chain.start.pid) for chain in waiting]
    needs, stood = max(one.needs_seconds for one in states), min(one.silence.seconds for one in states)
    if needs == inf or all(state_of(case, chain.start.pid).needs_seconds == inf for chain in absent):
        if not outlasts(case, first.end):
            return None  # what they do was not read
        needs = STRUCTURAL_SECONDS  # whatever other threads of that rank do, the end of its chain sleeps on
    if first.end.kind in ("sleep", "file_poll"):  # it asks for one thing since the others wait
        stood = max(stood, silent(waiting))
    named, why = numbered(list(map(rank_of, absent))), absentee.why_absent(case, first, left, roots, holder)
    found = hang_between(
        case,
        STALLED,
        [first],
        f"{named} never joined {op}: {why}; {listed(waiting)} for it",
        patience=needs,
        stood=stood,
        ceiling=MAY_COME
        if first.end.kind == "rendezvous"
        else 1.0,  # a client of the store that is no rank may set a key
        evidence=(
            *(graph.evidence(case) if graph is not None else ()),
            *(_waits(case, chain, place.call) for chain, place in list(zip(waiting, places, strict=True))[:3]),
            *loads,
            *unanswered(case),
        ),
        refuted={"straggling_rank": "not one collective has completed meanwhile"},
        advice=(*ask(first.end), stacks_of(first.end.node.pid)),
    )
    ends = (one for chain in (*absent, holder) if chain is not None for one in chain.culprits())
    return msgspec.structs.replace(
        found,
        culprits=tuple(map(culprit, left)) or (*map(culprit, roots), *ends),
        wait_chain=(
            *links(case, waiting, {place.rank: place.call for place in places}),
            *(msgspec.structs.replace(one, depth=one.depth + 1) for one in first.links),
        ),
    )


def _waits(case: Case, chain: Chain, call: str) -> Evidence:
    claim, observed = f"waits {waits_as(case, chain, call)}", f"for {duration(silent([chain]))}"
    return case.saw("collective", f"rank {chain.start.rank}", claim, observed, "returns within a step")


def mismatched(case: Case) -> Outcome:
    """All ranks are in different calls, or were recorded in different ones. What shows it most directly comes first."""
    return (
        mismatch.by_records(case)
        or mismatch.in_a_ring(case)
        or mismatch.left_early(case)
        or mismatch.by_counts(case)
        or mismatch.by_sizes(case)
        or mismatch.in_exchanges(case)
        or mismatch.behind_cards(case)
        or mismatch.by_stacks(case)
    )


def wedged(case: Case) -> Outcome:
    """All ranks are in one and the same collective, and nothing travels."""
    seen = same_call(case)
    if isinstance(seen, Missing):
        return Abstention(cause=WEDGED.name, missing=(seen,))
    if seen is None or seen.delivered:
        return None  # what the network was given it has delivered
    # NVLink delivers or does not; what goes over a network is sent again for a while, and a link may come back.
    patience = STRUCTURAL_SECONDS if seen.on_cards and seen.graph is not None else temporal(case)
    if seen.on_cards and not seen.recorded and recorder_owes(case):
        patience += ANSWER_SECONDS
    several = 0 if seen.recorded else _groups(case, len(seen.chains))
    several = several if several > 1 else 0
    told = f"; calls of their {several} communicators, made in another order by each, hang so too" if several else ""
    # RAS counts calls. That all mean the same size, and make the calls of several groups in one order, only the recorders tell.
    ceiling = 1.0 if seen.recorded else Level.MEDIUM if several else Level.HIGH
    same = "the calls are the same as far as can be seen; their sizes, and sends and receives, only the recorders tell"
    return hang_between(
        case,
        WEDGED,
        seen.chains,
        f"all {len(seen.chains)} ranks are in {seen.place}, and no data travels between them{told}",
        patience=patience,
        stood=seen.silent_seconds,
        ceiling=ceiling,
        evidence=seen.evidence(case),
        places=[Place.of(chain) for chain in seen.chains],
        culprits=(),
        refuted={
            STALLED.name: "every rank is in the same call at the same line",
            mismatch.MISMATCHED.name: "the recorders show the same calls" if seen.recorded else same,
        },
        advice=(
            "dmesg | grep -iE 'nvlink|mlx5|link|xid'; ss -tni",
            "start it with perfwatch run: the flight recorder then tells in which order each rank calls"
            if several
            else "NCCL_DEBUG=INFO and nccl-tests all_reduce_perf between these hosts",
        ),
    )


def _groups(case: Case, ranks: int) -> int:
    """How many communicators of all the ranks were used, by RAS."""
    answers = (case.history.latest(Communicator, *key) for key in case.history.entities(Communicator))
    return sum(seen is not None and seen.reading.size == ranks and _is_used(seen.reading) for seen in answers)


def _is_used(communicator: Communicator) -> bool:
    return min((sum(member.launched.values()) for member in communicator.members), default=0) > 0


RULES = (Rule(STALLED, stalled), Rule(mismatch.MISMATCHED, mismatched), Rule(WEDGED, wedged))
