"""Training that waits for Python that goes through data: the training thread's own, or a worker's that owes it a batch.

It reads or writes all the time, and data come to an end: predictions that are written out, a stream that skips to where a
run had stopped, a buffer that fills before the first batch.
"""

from collections.abc import Iterator

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import since_training
from perfwatch.triage.moving.work import Work, data_of, moves_data
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, at_training
from perfwatch.triage.shares.thresholds import CERTAIN, LATELY_SECONDS, MEDIUM
from perfwatch.triage.waits.batches import through_a_queue, without_a_batch
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Finding

# Of the patience: until then a lock whose owner works may be handed over, again and again, and a rank may come to a collective.
# No pause as long as the longest that the run has recovered from lasts so long: the patience is three times that.
LASTS = 0.35


def through_data(case: Case, cause: Cause) -> Iterator[Finding]:
    """A finding for each rank that has made no step for a while because a thread goes through data."""
    for pid, chain in case.chains.items():
        if case.progress[pid].kind != "moving" and chain.end.kind == "python":
            node = chain.end.node
            through = moves_data(case.history, node) and not loop_of(case.history, node).may_turn_for_ever
            if through and _lasts(case, chain) >= LASTS * temporal(case):
                yield _finding(case, cause, chain)


def _is_its_own(chain: Chain) -> bool:
    return (chain.end.node.pid, chain.end.node.tid) == (chain.start.pid, chain.start.tid)


def _lasts(case: Case, chain: Chain) -> float:
    """For how long: since training was last seen, or since a batch was delivered; 0 where it keeps no training waiting."""
    if not _is_its_own(chain):
        waits = case.progress[chain.start.pid].kind == "still" and through_a_queue(case, chain)
        return without_a_batch(case, chain)[0] if waits else 0.0
    rank = case.job.members[chain.start.pid]
    recent = case.profile(rank, LATELY_SECONDS)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training):
        return 0.0
    return since_training(case, rank)


def _finding(case: Case, cause: Cause, chain: Chain) -> Finding:
    node = chain.end.node
    doing = Work(node.motion.run_share or 0.0, data_of(case.history, node.pid, [node.tid])).said
    waits = f"waits for {who(chain)}, which goes through data"
    own = f"itself goes through data at {show(node.frame)}"
    return Finding(
        cause=cause.name,
        state=cause.state,
        summary=f"the training thread {own if _is_its_own(chain) else waits}: {doing}",
        confidence=CERTAIN if loop_of(case.history, node).counts else MEDIUM,
        owner=cause.owner,
        culprits=(culprit(node),),
        wait_chain=chain.links,
        evidence=(
            case.saw(
                "io", f"pid {node.pid} thread {node.tid}", "reads or writes all the time", doing, "0 would mean a hang"
            ),
            case.saw("stack", f"pid {chain.start.pid}", "makes no step", f"for {_lasts(case, chain):.0f} s", "a step"),
        ),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
    )
