"""The training thread is in the program's own code, in a loop or a sleep, and makes no step.

What it means
    A loop whose condition never comes true, a retry without an end, or a sleep of days. The process looks busy or idle, and
    no step will come. The loop may be inside of a step: in a module's forward, in what a loader fetches.

How it is recognised
    The training thread runs Python (or sleeps in the program's own code) below the same outer frame, was never seen in training
    code meanwhile, and this lasts beyond the patience and what this run has recovered from before; five times as long for a
    ``for`` loop, a ``while`` that reads or writes data, or computes in torch, and one of ``for`` loops before any training. A
    sleep whose deadline lies beyond it need not be waited for. Or it is in training code, but all of many samples are of one
    ``while`` loop inside of one call, and of nothing else; the loop may ask its card for a value in each turn.

What it is mistaken for
    Long but finite Python: hence the patience, without an end for who reads or writes all the time (``waiting_on_work``), or
    prepares in a ``for`` loop (``starting``). ``held_gil``: the line never changes there.

What to do next
    Look at the named line: what would end that loop?
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, nearest, outlasts, temporal, wakes_soon, who
from perfwatch.triage.moving.caught import at_work, caught
from perfwatch.triage.moving.loops import (
    COUNTED_LOOP,
    SECONDS,
    blamed,
    computes_on_card,
    gets_nowhere,
    moves_data,
    releases_gil,
    trains_around,
    turning,
)
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull, since_training
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.ranks.absence import RUNS
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.preparing import UNSURE, goes_through_rounds, prepares
from perfwatch.triage.shares.profile import at_training, profile
from perfwatch.triage.verdict import Abstention, Alternative, Missing, Outcome
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.napping import OTHER_WORK, naps
from perfwatch.triage.waits.node import End
from perfwatch.triage.words.frames import show

CAUSE = Cause("endless_python", "hung", "user_code", (Thread, Stack))

RECENT_SECONDS = 6.0
INFERRED = 0.88  # a long finite computation cannot be told apart by anything but time
ROUNDS = 0.65  # each is known to end, and no training was ever seen that could stand still


def judge(case: Case) -> Outcome:
    """Fires on a training thread that sleeps or turns in the program's own code."""
    return nearest(_of_rank(case, rank) for rank in case.ranks if case.progress[rank.pid].kind != "moving")


def _of_rank(case: Case, rank: Member) -> Outcome:
    chain, end = case.chains[rank.pid], case.chains[rank.pid].end
    if chain.through - {"supervised", "lock"}:
        return None
    if end.node.stack is None:
        lacking = case.lacks("stacks") or Missing(witness="stacks", reason=f"no stack of pid {rank.pid} was read")
        return Abstention(cause=CAUSE.name, missing=(lacking,)) if end.kind in ("sleep", "python") else None
    if end.kind == "sleep" and end.still and not wakes_soon(case, end):
        return _sleeps(case, chain)
    if end.kind == "sleep" and end.node.motion.distinct <= 1 and not end.node.motion.io_calls:
        return naps(case, CAUSE, chain)
    if within := turns_within(case.history, rank.pid, chain.start.tid):
        return caught(case, CAUSE, chain, within) if end.kind in RUNS or at_work(case, end) else None
    seen = profile(case.history, end.node.pid, end.node.tid, seconds=RECENT_SECONDS)
    if not seen.share_where(at_training) and not seen.seen(*OTHER_WORK) and _turns_in_python(case, end):
        return _turns(case, chain, since_training(case, rank))
    return None


def _turns_in_python(case: Case, end: End) -> bool:
    """Whether it runs Python, or torch's operations at several lines of a loop that waits for a condition."""
    if end.kind != "native" or "while" not in turning(case.history, end.node):
        return end.kind == "python"
    return len(profile(case.history, end.node.pid, end.node.tid, seconds=SECONDS).lines()) > 1


def _sleeps(case: Case, chain: Chain) -> Outcome:
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} sleeps in the program's own code: {chain.awaited}",
        patience=STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case),
        next=(f"look at {show(chain.end.node.frame)}",),
    )


def _turns(case: Case, chain: Chain, watched: float) -> Outcome:
    rank, steps = case.job.members[chain.start.pid], case.progress[chain.start.pid].steps
    loops = turning(case.history, chain.end.node)
    over_data, waits = moves_data(case.history, chain.end.node), "while" in loops
    if over_data and not waits:
        return None  # data come to an end
    told = bool(loops) or len(case.ranks) > 1  # of several ranks one computes for all, and mostly in a library
    computes = releases_gil(case.history, chain.end.node) or computes_on_card(case, chain.start.pid)
    rounds = goes_through_rounds(case, rank)
    counts = over_data or computes or rounds or (told and not waits) or case.awaited_at_start(chain.start.pid)
    patience = temporal(case) * (COUNTED_LOOP if counts else 1.0)
    lasts = lull(case, rank, watched, patience)
    silent = lasts.seconds if steps is None or steps.ago_seconds is None else steps.ago_seconds
    if counts and silent < patience and not (waits and (computes or rounds)):
        return None  # a loop over something comes to its end: long work until proved otherwise
    if has_come_back(case, rank, silent) or trains_around(case.history, chain.end.node):
        return None
    sure = UNSURE if prepares(case, rank) else ROUNDS if rounds else GUESSED
    if waits and not (over_data or computes or rounds):
        sure = INFERRED
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} runs Python without making a step",
        patience=patience,
        silent=silent,
        evidence=(*lasts.evidence, *gets_nowhere(case, chain.start)),
        ceiling=min(lasts.ceiling, sure),
        alternatives=(Alternative(cause="computing_on_host", refuted_by="time alone: longer than the patience"),),
        next=(f"look at {show(chain.end.node.frame)}: what would end that loop?",),
    )
    return blamed(case.history, chain.end.node, found)
