"""The same call is tried again and again, or the ranks are started again and again."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.roles.restarts import restarts
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    HIGH,
    LATELY_SECONDS,
    LOW,
    MEDIUM,
    MOSTLY,
    NEARLY_ALL,
    NOW_SECONDS,
    TWICE,
)
from perfwatch.triage.slowness import certainty, slow, worst
from perfwatch.triage.waits.node import Node, culprit
from perfwatch.triage.words.backing_off import next_try_seconds, retries
from perfwatch.triage.words.frames import show, user_frames
from perfwatch.verdict import Alternative, Culprit, Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

RESTARTED = "restart_loop"
RETRYING = Cause("retrying", "slow", "network", (Stack, Thread), also=(RESTARTED,))

POLLS_PER_SECOND = 20.0  # sleeps of milliseconds: such a loop may poll for what another process makes
WAITED_SECONDS = 10.0  # by the training thread


def retrying(case: Case) -> Outcome:
    """Fires on ranks that are restarted, or where a training thread, or a producer of its data, backs off again and again."""
    return restarting(case, RESTARTED) or _backs_off(case) or _workers_back_off(case) or _thread_backs_off(case)


def _backs_off(case: Case) -> Finding | None:
    found = worst(case, lambda rank, seen: seen.share_where(lambda stack: retries(case, stack))) or only_tries(case)
    if found is None:
        return None
    rank, seen, lost = found
    wakes = motion(case.history, rank.pid, case.progress[rank.pid].thread).switches_per_second or 0.0
    polls = wakes > POLLS_PER_SECOND
    if lost < NEARLY_ALL and len(seen.runs(lambda stack: retries(case, stack))) < TWICE:
        return None
    frame = seen.top_line(lambda stack: retries(case, stack))
    rests = seen.share_where(lambda stack: retries(case, stack))
    share = f"{rests:.0%} of {seen.samples} samples" + (
        f", and {lost - rests:.0%} wait in a try" if lost > rests else ""
    )
    left = next_try_seconds(case, case.chains[rank.pid].start) or 0.0
    again = f"; it tries again in {left:.0f} s" if left >= NOW_SECONDS else ""
    return slow(
        case,
        RETRYING,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(MEDIUM if polls else 1.0, certainty(lost)),
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
        RETRYING,
        summary=found.summary(case, f"backing off and retrying {share:.0%} of the time"),
        evidence=(case.saw("stack", found.kind, "sleep between tries", f"{share:.0%} of their samples", "0 %"),),
        alternatives=(
            Alternative(cause="starved_by_network", refuted_by="they sleep between two tries: no answer is under way"),
        ),
        next=(f"look at what {found.line(case)} calls: who refuses, and why?",),
        ceiling=CERTAIN,
    )


def _thread_backs_off(case: Case) -> Finding | None:
    """A thread of the rank that must produce what the training thread waits for, and sleeps before its next try."""
    for chain in case.still_chains:
        node, waited = chain.end.node, chain.start.motion.ran_ago_seconds or 0.0
        left = next_try_seconds(case, node)
        if left is None or node.pid != chain.start.pid or node.tid == chain.start.tid or waited < WAITED_SECONDS:
            continue
        return slow(
            case,
            RETRYING,
            case.job.members[chain.start.pid],
            lost=1.0,
            confidence=HIGH,
            summary=f"{who(chain)} backs off, tries again in {left:.0f} s, and the training thread waits for it",
            culprits=(culprit(node),),
            evidence=(
                case.saw("stack", f"pid {node.pid} thread {node.tid}", "rests before another try", f"{left:.0f} s"),
            ),
            next=(f"look at what {show(node.frame)} rests for",),
        )
    return None


def restarting(case: Case, cause: str) -> Finding | None:
    """That ranks end and new ones of the same number take their places; None where none did."""
    found = restarts(case)
    if found is None:
        return None
    return Finding(
        cause=cause,
        state="slow",
        summary=(
            f"the launcher restarts the ranks again and again: {found.processes} processes of rank {found.rank} "
            if found.processes > TWICE
            else f"the launcher has restarted the ranks once: a second process of rank {found.rank} "
        )
        + f"in {found.seconds:.0f} s",
        confidence=CERTAIN if found.processes > TWICE else LOW,
        lost_share=1.0,
        owner="user_code",
        culprits=tuple(Culprit(pid=m.pid, rank=m.rank) for m in case.job.ranks[:2]),
        evidence=(
            case.saw(
                "process",
                f"rank {found.rank}",
                "replaced",
                f"{found.processes} processes, one after the other, in {found.seconds:.0f} s",
                "one",
            ),
        ),
        alternatives=(Alternative(cause="crashed", refuted_by="a new process takes the place of each one that ends"),),
        next=("read the first traceback in the ranks' own output",),
    )


WAITS_SHARE = 0.05  # of a core: more is work in the try

Place = tuple[tuple[str, str], tuple[tuple[str, str, int], ...]]  # a function, and the lines that led to its call


def only_tries(case: Case) -> tuple[Member, Profile, float] | None:
    """The first such rank, with its samples and their share: no step between the tries, and it woke for the next one, or is known to."""
    for rank in case.ranks:
        seen = case.profile(rank, LATELY_SECONDS)
        if seen.samples < ENOUGH_SAMPLES or seen.seconds < NOW_SECONDS:
            continue
        node = case.chains[rank.pid].start
        share = seen.share_where(lambda stack: retries(case, stack))
        if share >= NEARLY_ALL and (wakes(case, node.pid, node.tid) or next_try_seconds(case, node) is not None):
            return rank, seen, share
        share = _share_in_one_loop(case, node, seen)
        if share >= NEARLY_ALL:
            return rank, seen, share
    return None


def wakes(case: Case, pid: int, tid: int) -> bool:
    """True if a thread came back from its sleep while we watched."""
    woke = case.history.growth(Thread, pid, tid, of=lambda thread: thread.voluntary_switches)
    return woke is not None and woke[0] >= TWICE


def _share_in_one_loop(case: Case, node: Node, seen: Profile) -> float:
    """Of the samples, those that rest in one loop between tries, or wait in a try of that very loop; 0 for a thread that works."""
    rests = [one.reading for one in seen.sights if retries(case, one.reading)]
    places = {place for stack in rests for place in _places(stack)[:1]}
    ran = motion(case.history, node.pid, node.tid, LATELY_SECONDS).run_share
    if len(places) != 1 or ran is None or ran > WAITS_SHARE or seen.seen(*TRAINING_TAGS):
        return 0.0
    if len(seen.runs(lambda stack: retries(case, stack))) < TWICE:
        return 0.0
    return seen.share_where(lambda stack: not places.isdisjoint(_places(stack)))


def _places(stack: Stack) -> list[Place]:
    """Every call of the program's own that a stack is in, innermost first: wherever in the called function it is."""
    own = user_frames(stack)
    led = [(frame.file, frame.function, frame.line) for frame in own]
    return [((frame.file, frame.function), tuple(led[index + 1 :])) for index, frame in enumerate(own)]


RULES = (Rule(RETRYING, retrying),)
