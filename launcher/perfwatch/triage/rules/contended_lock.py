"""The training thread waits again and again for a lock that another thread holds while it works or waits for something."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion, moves, python_threads
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.locked_in_turn import workers_in_turn
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import FEW_SAMPLES, LOST_SHARE, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.waits.gil import kept_from_gil
from perfwatch.triage.waits.lock_owners import acquires, free, holds
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.code import line_of, lock_taken
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Evidence, Finding, Outcome
from perfwatch_probes.readings import SourceLine, Stack, Thread

CAUSE = Cause("contended_lock", "slow", "user_code", (Thread, Stack))

ASLEEP_SHARE = 0.5  # of the looks at the thread, for each share of samples at the line
WORKING_SHARE = 0.2  # of a core: the one that holds it
RESTED_SECONDS = 2.0  # longer than the waits within a healthy step
TAKEN = 2  # times that it was seen to go on
CEILING_ONE_OF_THEM = 0.7  # several run, and no text says which of them holds it; or the only one is within no ``with``
CEILING, CEILING_RESTING = 0.88, 0.77  # who holds the lock is inferred: it is the thread that runs, or rests, meanwhile


def judge(case: Case) -> Outcome:
    """Fires on a training thread that sleeps for a lock again and again while another thread runs, or whose workers wait for one."""
    own, gil = _kept_from_lock(case) or workers_in_turn(case, CAUSE), kept_from_gil(case, CAUSE)
    found = [one for one in (own, gil) if isinstance(one, Finding)]
    return max(found, key=lambda one: one.lost_share or 0.0) if found else gil


def _kept_from_lock(case: Case) -> Finding | None:
    """A training thread that sleeps at its own lock while another thread runs, and goes on now and then."""
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        lost = seen.share_where(lambda stack: takes_a_lock(case.history, stack))
        if seen.samples < FEW_SAMPLES or lost < LOST_SHARE or not _sleeps_and_goes_on(case, rank, lost):
            continue
        frame = seen.top_line(lambda stack: takes_a_lock(case.history, stack))
        busy = _busy(case, rank)
        held = _holding(case, rank, line_of(case.history, frame))
        owner = held if held is not None else next(iter(busy), None)
        if owner is None:
            continue
        works, node = owner in busy, node_of(case.history, case.job, rank.pid, owner)
        if works and (node.motion.ran_ago_seconds or 0.0) >= RESTED_SECONDS:
            continue  # it worked a while ago: who stands now gives nothing back
        ceiling = CEILING if works else CEILING_RESTING
        if held is None and (len(busy) > 1 or free(case.history, node)):
            ceiling = CEILING_ONE_OF_THEM
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            frame=frame,
            confidence=min(ceiling, certainty(lost)),
            summary=f"the training thread waits {lost:.0%} of the time at {show(frame)} for a lock while thread "
            f"{node.name or owner} {'works' if works else 'rests'} at {show(node.frame)}",
            evidence=_evidence(case, rank, seen, lost, node, works),
            culprits=(culprit(node),),
            alternatives=(Alternative(cause="deadlocked_locks", refuted_by="it goes on again and again"),),
            next=(f"look at {show(node.frame)}: do the slow part outside of the lock",),
        )
    return None


def _sleeps_and_goes_on(case: Case, rank: Member, lost: float) -> bool:
    tid = case.progress[rank.pid].thread
    looks = case.history.series(Thread, rank.pid, tid, seconds=WINDOW_SECONDS)
    asleep = sum(1 for one in looks if (wait := one.reading.wait) and wait.kind == "futex" and wait.forever)
    if not looks or asleep / len(looks) < ASLEEP_SHARE * lost:
        return False
    moved = moves(case.history, rank.pid, tid)
    return case.progress[rank.pid].kind == "moving" or (moved.times >= TAKEN and moved.recurrent)


def _busy(case: Case, rank: Member) -> list[int]:
    """The other Python threads that run, the busiest first."""
    others = [tid for tid in python_threads(case.history, rank.pid) if tid != case.progress[rank.pid].thread]
    shares = {tid: motion(case.history, rank.pid, tid, WINDOW_SECONDS).run_share or 0.0 for tid in others}
    return sorted((tid for tid in others if shares[tid] >= WORKING_SHARE), key=lambda tid: -shares[tid])


def _holding(case: Case, rank: Member, line: SourceLine | None) -> int | None:
    """The only other thread that stands inside of a ``with`` of a lock of the same name, beyond the line that takes it.

    Failing that, the only one in a loop that takes such a lock by ``acquire``.
    """
    lock, own = lock_taken(line), case.progress[rank.pid].thread
    others = [tid for tid in python_threads(case.history, rank.pid) if lock and tid != own]
    nodes = [node_of(case.history, case.job, rank.pid, tid) for tid in others]
    inside = [one.tid for one in nodes if holds(case.history, one, lock)]
    held = inside or [one.tid for one in nodes if acquires(case.history, one, lock)]
    return held[0] if len(held) == 1 else None


def _evidence(case: Case, rank: Member, seen: Profile, lost: float, owner: Node, works: bool) -> tuple[Evidence, ...]:
    tid = case.progress[rank.pid].thread
    moved = moves(case.history, rank.pid, tid)
    entity = f"pid {rank.pid} thread {owner.tid}"
    runs = motion(case.history, rank.pid, owner.tid, WINDOW_SECONDS).run_share or 0.0
    return (
        case.saw("stack", f"pid {rank.pid}", "waits for a lock", f"{lost:.0%} of {seen.samples} samples", "below 2 %"),
        case.saw("thread", f"pid {rank.pid} thread {tid}", "goes on", f"{moved.times} times", "0 would mean a hang"),
        case.saw("thread", entity, "runs meanwhile", f"{runs:.0%} of a core")
        if works
        else case.saw(
            "source", entity, "rests where a lock of that name is held", f"at {show(owner.frame)}", "lets go first"
        ),
    )


RULES = (Rule(CAUSE, judge),)
