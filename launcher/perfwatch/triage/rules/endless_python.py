"""The training thread is in the program's own code, in a loop or a sleep, and makes no step."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, nearest, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.caught import at_work, caught, never_left, turns_for_ever
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import since_training
from perfwatch.triage.moving.progress import LATELY_SECONDS
from perfwatch.triage.moving.thresholds import LOOP_SECONDS, SIGN_OF_LIFE
from perfwatch.triage.moving.unleft import unleft
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.calls import RUNS
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import at_training, profile
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.napping import OTHER_WORK, naps
from perfwatch.triage.waits.node import End
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Abstention, Missing, Outcome
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

CAUSE = Cause("endless_python", "hung", "user_code", (Thread, Stack))

DAY_SECONDS = 86400.0  # who trains again and again may rest for hours in between
RECENT_SECONDS, FEW_RECENT = 6.0, 20
REMOTE_CALL = "rpc"  # the edge from a rank that waits for an answer to the thread of another one that executes the call


def judge(case: Case) -> Outcome:
    """Fires on a training thread that sleeps or turns in the program's own code."""
    return nearest(_of_rank(case, rank) for rank in case.ranks)


def _of_rank(case: Case, rank: Member) -> Outcome:
    chain, end = case.chains[rank.pid], case.chains[rank.pid].end
    if (loop := unleft(case, rank)) is not None and loop.doubted:
        return never_left(case, CAUSE, chain, loop)
    if case.progress[rank.pid].kind == "moving":
        return None
    if chain.through == {REMOTE_CALL}:
        return _sleeps(case, chain) if _never_answers(case, chain) else None
    if chain.through - {"supervised", "lock"}:
        return None
    if end.node.stack is None:
        lacking = case.lacks("stacks")
        if lacking and _sleeps_for_days(case, end):
            return _sleeps(case, chain)
        lacking = lacking or Missing(witness="stacks", reason=f"no stack of pid {rank.pid} was read")
        return Abstention(cause=CAUSE.name, missing=(lacking,)) if end.kind in ("sleep", "python") else None
    if end.kind == "sleep" and end.still and not wakes_soon(case, end):
        return _sleeps(case, chain)
    if end.kind == "sleep" and end.node.naps:
        return naps(case, CAUSE, chain)
    if within := turns_within(case.history, rank.pid, chain.start.tid):
        return caught(case, CAUSE, chain, within) if end.kind in RUNS or at_work(case, end) else None
    seen = profile(case.history, end.node.pid, end.node.tid, seconds=RECENT_SECONDS)
    if seen.samples < FEW_RECENT:  # the next record is late
        seen = profile(case.history, end.node.pid, end.node.tid, seconds=LOOP_SECONDS)
    if not seen.share_where(at_training) and not seen.seen(*OTHER_WORK) and _turns_in_python(case, end):
        return turns_for_ever(case, CAUSE, chain, since_training(case, rank))
    return None


def _never_answers(case: Case, chain: Chain) -> bool:
    """Whether the one call that is executed sleeps while all ranks stand: else it may be meant to. Of several nobody sees which it is."""
    if len(chain.ends) > 1 or not all(one.start.motion.frozen for one in case.chains.values()):
        return False
    return chain.end.kind == "sleep" and chain.end.still is True and not wakes_soon(case, chain.end)


def _sleeps_for_days(case: Case, end: End) -> bool:
    """True if the main thread, whose stack cannot be read, sleeps longer than any program intends, and its process uses no CPU time."""
    node, left = end.node, end.node.wait.remaining_seconds if end.node.wait is not None else None
    if end.kind != "sleep" or not end.still or node.tid != node.pid or left is None or left <= DAY_SECONDS:
        return False
    used = [
        (seen.at, seen.reading.cpu_seconds)
        for seen in case.history.series(ProcessUsage, node.pid, seconds=LATELY_SECONDS)
    ]
    return len(used) > 1 and used[-1][1] - used[0][1] <= SIGN_OF_LIFE * (used[-1][0] - used[0][0])


def _turns_in_python(case: Case, end: End) -> bool:
    """Whether it runs Python, or torch's operations at several lines of a loop that waits for a condition, its own or a library's."""
    loop = loop_of(case.history, end.node)
    if end.kind == "native" and loop.library is not None:
        return True
    if end.kind != "native" or not loop.may_turn_for_ever:
        return end.kind == "python"
    return len(profile(case.history, end.node.pid, end.node.tid, seconds=LOOP_SECONDS).lines()) > 1


def _sleeps(case: Case, chain: Chain) -> Outcome:
    wait, frame = chain.end.node.wait, chain.end.node.frame
    within = "in the program's own code " if frame else ""
    rests = wait is not None and wait.remaining_seconds is not None and wait.remaining_seconds <= DAY_SECONDS
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} waits {within}for {chain.awaited}",
        patience=STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case),
        next=(f"look at {show(frame)}" if frame else "look in the program for a sleep of days",),
        ceiling=MAY_COME if rests else 1.0,
    )


RULES = (Rule(CAUSE, judge),)
