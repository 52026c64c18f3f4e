"""The same call fails and is tried again and again."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.restarting import restarting
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.shares.tries import ONLY, only_tries, wakes
from perfwatch.triage.slowness import certainty, slow, worst
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.words.backing_off import next_try_seconds, retries
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

RESTARTED = "restart_loop"
CAUSE = Cause("retrying", "slow", "network", (Stack, Thread), also=(RESTARTED,))

MOSTLY = 0.5  # of what the workers do
TRIES = 2  # separate ones, at least
POLLS_PER_SECOND, POLLED = 20.0, 0.7  # rests of milliseconds: who asks so often may poll for what another one makes
LONG_REST_SECONDS = 4.0  # whose end is worth saying
WAITED_SECONDS, RESTS = 10.0, 0.75  # by the training thread; whether the next try succeeds nobody knows
LOOP = 0.92


def judge(case: Case) -> Outcome:
    """Fires on ranks that are restarted, or where a training thread, or those who make its data, back off again and again."""
    return restarting(case, RESTARTED) or _backs_off(case) or _workers_back_off(case) or _thread_backs_off(case)


def _backs_off(case: Case) -> Finding | None:
    found = worst(case, lambda rank, seen: seen.share_where(lambda stack: retries(case, stack))) or only_tries(case)
    if found is None:
        return None
    rank, seen, lost = found
    wakes = motion(case.history, rank.pid, case.progress[rank.pid].thread).switches_per_second or 0.0
    polls = wakes > POLLS_PER_SECOND
    if lost < ONLY and len(seen.runs(lambda stack: retries(case, stack))) < TRIES:
        return None
    frame = seen.top_line(lambda stack: retries(case, stack))
    rests = seen.share_where(lambda stack: retries(case, stack))
    share = f"{rests:.0%} of {seen.samples} samples" + (
        f", and {lost - rests:.0%} wait in a try" if lost > rests else ""
    )
    left = next_try_seconds(case, case.chains[rank.pid].start) or 0.0
    again = f"; it tries again in {left:.0f} s" if left >= LONG_REST_SECONDS else ""
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(POLLED if polls else 1.0, certainty(lost)),
        summary=f"the training thread {'asks again' if polls else 'backs off and retries'} {lost:.0%} of the time at {show(frame)}"
        + (f", {wakes:,.0f} times a second: it may poll for what another one makes" if polls else again),
        evidence=(case.saw("stack", f"pid {rank.pid}", "sleeps between tries", share, "0 %"),),
        alternatives=(Alternative(cause="blocked_network", refuted_by="each try returns"),),
        next=(f"look at what {show(frame)} calls",),
    )


def _workers_back_off(case: Case) -> Finding | None:
    found = starving(case)
    if found is None:
        return None
    at_work = found.profiles(case)
    tries = sum(seen.share_where(lambda stack: retries(case, stack)) * seen.samples for _, _, seen in at_work)
    share = tries / max(1, sum(seen.samples for _, _, seen in at_work))
    if share < MOSTLY or not any(wakes(case, pid, tid) for pid, tid, _ in at_work):
        return None
    return found.finding(
        case,
        CAUSE,
        summary=found.summary(case, f"backing off and retrying {share:.0%} of the time"),
        evidence=(case.saw("stack", found.kind, "sleep between tries", f"{share:.0%} of their samples", "0 %"),),
        alternatives=(
            Alternative(cause="starved_by_network", refuted_by="they sleep between two tries: no answer is under way"),
        ),
        next=(f"look at what {found.line(case)} calls: who refuses, and why?",),
        ceiling=LOOP,
    )


def _thread_backs_off(case: Case) -> Finding | None:
    """A thread of the rank's own that is to bring what the training thread waits for, and rests before its next try."""
    for chain in case.still_chains:
        node, waited = chain.end.node, chain.start.motion.ran_ago_seconds or 0.0
        left = next_try_seconds(case, node)
        if left is None or node.pid != chain.start.pid or node.tid == chain.start.tid or waited < WAITED_SECONDS:
            continue
        return slow(
            case,
            CAUSE,
            case.job.members[chain.start.pid],
            lost=1.0,
            confidence=RESTS,
            summary=f"{who(chain)} backs off, tries again in {left:.0f} s, and the training thread waits for it",
            culprits=(culprit(node),),
            evidence=(
                case.saw("stack", f"pid {node.pid} thread {node.tid}", "rests before another try", f"{left:.0f} s"),
            ),
            next=(f"look at what {show(node.frame)} rests for",),
        )
    return None


RULES = (Rule(CAUSE, judge),)
