"""A kernel that does not end: how long nothing has come of it, how long it is given, and how sure that makes."""

from perfwatch.triage.cards.gpu import Regime, regime
from perfwatch.triage.cards.kernels import Kernels, kernels
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.memory import engine_quiet, unfed
from perfwatch.triage.patience import LONGEST_RECOVERED, STRUCTURAL_SECONDS, temporal
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Thread

SURE_OF_CARD = 0.7  # below it utilisation and power alone speak, of a run that was not seen at work
WATCHED, WATCHED_COMPUTING = 3.0, 10.0  # seconds of the card itself, beside what the kernel remembers
GUESSED = 0.65
LATELY_SECONDS = 1.0
BY_DEVICE = 0.85  # the card is not known to be this rank's
INFERRED = 0.85  # arithmetic goes on in it: only time tells an iteration without end from a long one


def silent_seconds(case: Case, chain: Chain, card: Regime, seen: Kernels) -> tuple[float, tuple[Evidence, ...]]:
    """For how long nothing has come of it: what was watched, and what the kernel remembers of the threads beside."""
    rank = case.job.members[chain.start.pid]
    fed = unfed(case, rank)
    asleep = (chain.start.motion.ran_ago_seconds or 0.0) if chain.start.tid != chain.end.node.tid else 0.0
    engine = engine_quiet(case, rank)
    if engine is None:
        return max(seen.since_seconds, fed.seconds, asleep), fed.evidence
    age, told = engine
    watched = seen.since_seconds if card.source == "gpm" else min(seen.since_seconds, age)
    return max(watched, fed.seconds, asleep, age), (*fed.evidence, *told)


def spins_on(history: History, uuid: str) -> bool:
    """Whether the newest kernel has lasted longer than any before it and moves nothing: it may never end, whatever was seen before."""
    return regime(history, uuid, LATELY_SECONDS).kind == "spin" and not kernels(history, uuid).go_on


def patience_seconds(case: Case, card: Regime, seen: Kernels) -> float:
    """Of a kernel that only waits, six seconds; of one that may compute, as long as for any loop."""
    may_end = card.computes or card.source != "gpm"  # without its units nobody sees a kernel end and the next one begin
    return max(temporal(case) if may_end else STRUCTURAL_SECONDS, LONGEST_RECOVERED * seen.longest_seconds)


def unwatched_seconds(card: Regime, seen: Kernels) -> float:
    """Seconds for which the card must still be watched, whatever is remembered: an evaluation has no backward pass either."""
    return max(0.0, (WATCHED_COMPUTING if card.computes else WATCHED) - seen.since_seconds)


def acts(case: Case, node: Node, seconds: float) -> bool:
    """Whether the thread wrote or read meanwhile: then it came back from its wait."""
    grown = case.history.growth(
        Thread, node.pid, node.tid, of=lambda t: (t.read_calls or 0) + (t.write_calls or 0), seconds=seconds
    )
    return grown is not None and grown[0] > 0


def ceiling(card: Regime, certain: bool) -> float:
    """The most that can be said; ``certain``: whether the card is known to be this rank's."""
    if card.sure < SURE_OF_CARD:
        return GUESSED
    return min(card.sure, INFERRED if card.computes else 1.0, 1.0 if certain else BY_DEVICE)
