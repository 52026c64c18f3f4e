"""A kernel on the GPU does not end, or a stream of it does not go on."""

import msgspec

from perfwatch.triage.cards.baseline import baseline
from perfwatch.triage.cards.gpu import WINDOW_SECONDS, Regime, regime
from perfwatch.triage.cards.idle_streams import idle_stream
from perfwatch.triage.cards.kernels import kernels
from perfwatch.triage.cards.spinning import acts, ceiling, patience_seconds, silent_seconds, unwatched_seconds
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.ranks.footprint import stands_out
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Abstention, Alternative, Evidence, Missing, Outcome
from perfwatch_probes.readings import GpuSample, Thread

CAUSE = Cause("stuck_kernel", "hung", "gpu", (GpuSample, Thread))


def judge(case: Case) -> Outcome:
    """Fires on a training thread that waits for a card whose kernel does nothing."""
    waiting = [
        (chain, regime(case.history, chain.end.detail))
        for chain in case.still_chains
        if chain.end.kind == "gpu" and chain.end.detail
    ]
    unseen = [chain for chain in case.still_chains if chain.end.kind == "gpu" and not chain.end.detail]
    if unseen and not waiting:
        lacking = case.lacks("gpm") or case.lacks("gpu") or Missing(witness="gpu", reason="the card was not read")
        return Abstention(cause=CAUSE.name, missing=(lacking,))
    spinning = [(chain, card) for chain, card in waiting if card.kind == "spin"]
    if not spinning:
        return idle_stream(case)
    if not case.job.covered:
        here = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
        reason = f"{here}: the kernel may wait for another"
        advice = "run perfwatch attach on the other nodes too"
        return Abstention(cause=CAUSE.name, missing=(Missing(witness="ranks", reason=reason, advice=advice),))
    if len(case.ranks) > 1:
        return _odd_one(case, spinning)
    return _stuck(case, *spinning[0])


def _odd_one(case: Case, spinning: list[tuple[Chain, Regime]]) -> Outcome:
    """Of several ranks that all wait, the one whose card looks different is not in the others' collective."""
    if len(spinning) < len(case.ranks) or len(spinning) < 3:
        return None
    cards = [card for _, card in spinning]
    odd = [(chain, card) for chain, card in spinning if stands_out(card, cards)]
    return _stuck(case, *odd[0]) if len(odd) == 1 else None


def _stuck(case: Case, chain: Chain, card: Regime) -> Outcome:
    name, seen = name_of(case.history, card.uuid), kernels(case.history, card.uuid)
    if acts(case, chain.end.node, seen.since_seconds):
        return None
    silent, evidence = silent_seconds(case, chain, card, seen)
    patience, unwatched = patience_seconds(case, card, seen), unwatched_seconds(card, seen)
    certain = cards_of(case.history, chain.start.pid).certain
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"a kernel on {name} has not ended for {silent:.0f} s and moves no data ({card.shown()}); "
        f"{who(chain)} waits for it",
        patience=patience,
        silent=min(silent, patience - unwatched) if unwatched else silent,
        evidence=(*_flat(case, card), *evidence, _spins(case, chain), *(() if certain else (_whose(case, chain),))),
        ceiling=ceiling(card, certain),
        alternatives=(
            Alternative(
                cause="gpu_bound", refuted_by="nothing moves to or from the card's memory, the host or another card"
            ),
            Alternative(
                cause="endless_python", refuted_by=f"a kernel is resident on {name}, and the line waits for it"
            ),
        ),
        next=(
            f"look at what is launched before {show(chain.start.frame or chain.end.node.frame)}",
            "compute-sanitizer --tool synccheck python ... on a short run",
        ),
    )
    culprits = tuple(msgspec.structs.replace(one, gpu=index_of(case.history, card.uuid)) for one in found.culprits)
    return msgspec.structs.replace(found, culprits=culprits)


def _whose(case: Case, chain: Chain) -> Evidence:
    how = cards_of(case.history, chain.start.pid).how
    return case.saw("binding", f"pid {chain.start.pid}", "whose card it is was inferred", how, "listed by the driver")


def _flat(case: Case, card: Regime) -> tuple[Evidence, ...]:
    before = baseline(case.history, card.uuid, WINDOW_SECONDS).shown()
    return (
        case.saw(
            card.source,
            name_of(case.history, card.uuid),
            "a kernel is resident and no data moves" if card.source == "gpm" else "resident, and draws no power",
            card.shown(),
            before or "data moves while a kernel is resident",
        ),
    )


def _spins(case: Case, chain: Chain) -> Evidence:
    node = chain.end.node
    share = node.motion.wanted_share
    return case.saw(
        "schedstat",
        f"pid {node.pid} thread {node.tid}",
        ("spins" if share > 0.0 else "sleeps") + (" in a synchronisation" if in_sync(case.history, node.stack) else ""),
        f"{share:.0%} of a core at one line",
        "returns within a step",
        node.thread_at,
    )


RULES = (Rule(CAUSE, judge),)
