"""The training thread waits again and again for a lock that another thread holds while it works or waits for something.

What it means
    A background thread (a replay buffer, a logger, a cache, a checkpointer) does its work under a lock that the training loop
    needs. Training goes on, at the pace of that thread.

How it is recognised
    The training thread stands, for a good part of the time, at a line of its own that takes a lock or waits for a condition,
    asleep in a futex without a timeout, and goes on again and again; another Python thread of the process runs meanwhile, or
    a single one rests in the midst of what the program has it do (a sleep, an answer from the network).

What it is mistaken for
    ``deadlocked_locks``: there it never goes on. ``starved_by_transforms``: there it waits for data, in a queue.

What to do next
    Do the slow part outside of the lock: copy under the lock, work on the copy.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.code import calling_line, names
from perfwatch.triage.frames import any_tag, is_user, show, tags
from perfwatch.triage.job import Member
from perfwatch.triage.motion import motion, moves, python_threads
from perfwatch.triage.node import culprit, node_of
from perfwatch.triage.profile import Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, LOST_SHARE, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.verdict import Alternative, Evidence, Outcome

CAUSE = Cause("contended_lock", "slow", "user_code", (Thread, Stack))

ASLEEP_SHARE = 0.5  # of the looks at the thread, for each share of samples at the line
WAITS_FOR_OTHERS = (
    "thread_wait",
    "queue_get",
    "queue_put",
    "selector",
    "mp_queue_get",
    "serve",
    "monitor",
    "futures_worker",
)
WORKING_SHARE = 0.2  # of a core: the one that holds it
TAKEN = 2  # times that it was seen to go on
CEILING_RESTING = 0.77
CEILING = 0.88  # who holds the lock is inferred: it is the thread that runs meanwhile


def judge(case: Case) -> Outcome:
    """Fires on a training thread that sleeps at its own lock while another thread runs, and goes on now and then."""
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        lost = seen.share_where(lambda stack: takes_a_lock(case, stack))
        if seen.samples < FEW_SAMPLES or lost < LOST_SHARE or not _sleeps_and_goes_on(case, rank, lost):
            continue
        worker = _owner(case, rank)
        owner, works = (worker, True) if worker is not None else (_resting_owner(case, rank), False)
        if owner is None:
            continue
        frame = seen.top_line(lambda stack: takes_a_lock(case, stack))
        node = node_of(case.history, case.job, rank.pid, owner)
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            frame=frame,
            confidence=min(CEILING if works else CEILING_RESTING, certainty(lost)),
            summary=f"the training thread waits {lost:.0%} of the time at {show(frame)} for a lock while thread "
            f"{node.name or owner} {'works' if works else 'rests'} at {show(node.frame)}",
            evidence=_evidence(case, rank, seen, lost, owner),
            culprits=(culprit(node),),
            alternatives=(Alternative(cause="deadlocked_locks", refuted_by="it goes on again and again"),),
            next=(f"look at {show(node.frame)}: do the slow part outside of the lock",),
        )
    return None


def takes_a_lock(case: Case, stack: Stack) -> bool:
    """Whether a stack stands at a line of the program that takes a lock, or in a wait of ``threading``."""
    if "thread_wait" in tags(stack) and tags(stack) <= {"thread_wait"}:
        return True
    line = calling_line(case.history, stack)
    if line is None:
        return False
    text = line.text.strip()
    return "acquire" in names(line.calls) or (text.startswith("with ") and not line.calls)


def _sleeps_and_goes_on(case: Case, rank: Member, lost: float) -> bool:
    tid = case.progress[rank.pid].thread
    looks = case.history.series(Thread, rank.pid, tid, seconds=WINDOW_SECONDS)
    asleep = sum(1 for one in looks if (wait := one.reading.wait) and wait.kind == "futex" and wait.forever)
    if not looks or asleep / len(looks) < ASLEEP_SHARE * lost:
        return False
    moved = moves(case.history, rank.pid, tid)
    return case.progress[rank.pid].kind == "moving" or (moved.times >= TAKEN and moved.recurrent)


def _owner(case: Case, rank: Member) -> int | None:
    """The other Python thread that runs most."""
    others = [tid for tid in python_threads(case.history, rank.pid) if tid != case.progress[rank.pid].thread]
    shares = {tid: motion(case.history, rank.pid, tid, WINDOW_SECONDS).run_share or 0.0 for tid in others}
    busiest = max(shares, key=lambda tid: shares[tid], default=None)
    return busiest if busiest is not None and shares[busiest] >= WORKING_SHARE else None


def _resting_owner(case: Case, rank: Member) -> int | None:
    """The only other thread of the program's own that is in the midst of something, if that is no wait for others."""
    others = [tid for tid in python_threads(case.history, rank.pid) if tid != case.progress[rank.pid].thread]
    nodes = [node_of(case.history, case.job, rank.pid, tid) for tid in others]
    amidst = [
        node.tid
        for node in nodes
        if node.stack is not None
        and any(map(is_user, node.stack.frames))
        and not any_tag(node.inner, *WAITS_FOR_OTHERS)
    ]
    return amidst[0] if len(amidst) == 1 else None


def _evidence(case: Case, rank: Member, seen: Profile, lost: float, owner: int) -> tuple[Evidence, ...]:
    runs = motion(case.history, rank.pid, owner, WINDOW_SECONDS).run_share or 0.0
    tid = case.progress[rank.pid].thread
    moved = moves(case.history, rank.pid, tid)
    return (
        case.saw("stack", f"pid {rank.pid}", "waits for a lock", f"{lost:.0%} of {seen.samples} samples", "below 2 %"),
        case.saw("thread", f"pid {rank.pid} thread {tid}", "goes on", f"{moved.times} times", "0 would mean a hang"),
        case.saw("thread", f"pid {rank.pid} thread {owner}", "runs meanwhile", f"{runs:.0%} of a core"),
    )
