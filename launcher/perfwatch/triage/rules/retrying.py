"""The same call is tried again and again, or the ranks are started again and again."""

from functools import partial

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import restarts
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.data import starving
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    LATELY_SECONDS,
    LOW,
    MEDIUM,
    MOSTLY,
    NEARLY_ALL,
    NOW_SECONDS,
    TWICE,
)
from perfwatch.triage.slowness import Facts, Line, Saw, certainty, slow, worst
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import next_try_seconds, retries
from perfwatch.triage.words.frames import user_frames
from perfwatch.verdict import Culprit, Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

RESTARTED = "restart_loop"
RETRYING = Cause("retrying", "slow", "network", (Stack, Thread), also=(RESTARTED,))

POLLS_PER_SECOND = 20.0  # sleeps of milliseconds: such a loop may poll for what another process makes
BACKS_OFF = Line(
    RETRYING,
    "the training thread {does} {lost:.0%} of the time at {at}{again}",
    (Saw("stack", "sleeps between tries", "{share}", "0 %"),),
    (("blocked_network", "each try returns"),),
    ("look at what {at} calls",),
)
WORKERS_BACK_OFF = Line(
    RETRYING,
    "{waits}",
    (Saw("stack", "sleep between tries", "{share:.0%} of their samples", "0 %", of="{kind}"),),
    (("starved_by_network", "they sleep between two tries: no answer is under way"),),
    ("look at what {line} calls: who refuses, and why?",),
)
RESTARTS = Line(
    Cause(RESTARTED, "slow", "user_code", ()),
    "{how} of rank {found.rank} in {found.seconds:time}",
    (
        Saw(
            "process",
            "replaced",
            "{found.processes} processes, one after the other, in {found.seconds:time}",
            "one",
            of="rank {found.rank}",
        ),
    ),
    (("crashed", "a new process takes the place of each one that ends"),),
    ("read the first traceback in the ranks' own output",),
)


def retrying(case: Case) -> Outcome:
    """Fires on ranks that are restarted, or where a training thread, or a producer of its data, backs off again and again."""
    return _restarting(case) or _backs_off(case) or _workers_back_off(case)


def _backs_off(case: Case) -> Finding | None:
    tries = partial(retries, case.history)
    found = worst(case, lambda _, seen: seen.share_where(tries)) or only_tries(case)
    if found is None:
        return None
    rank, seen, lost = found
    wakes = motion(case.history, rank.pid, case.progress[rank.pid].thread).switches_per_second or 0.0
    if lost < NEARLY_ALL and len(seen.runs(tries)) < TWICE:
        return None
    node = case.chains[rank.pid].start
    rests, left = seen.share_where(tries), next_try_seconds(case.history, node.thread, node.stack) or 0.0
    share = f"{rests:.0%} of {seen.samples} samples" + (
        f", and {lost - rests:.0%} wait in a try" if lost > rests else ""
    )
    does = "backs off and retries"
    again = f"; it tries again in {duration(left)}" if left >= NOW_SECONDS else ""
    ceiling = 1.0
    if wakes > POLLS_PER_SECOND:
        does, again = "polls", f", {wakes:,.0f} times a second; another thread or process may produce what it waits for"
        ceiling = MEDIUM
    sure, frame = min(ceiling, certainty(lost)), seen.top_line(tries)
    return slow(case, BACKS_OFF, rank, lost, frame=frame, confidence=sure, does=does, again=again, share=share)


def _workers_back_off(case: Case) -> Finding | None:
    found = starving(case)
    if found is None:
        return None
    at_work, tries = found.profiles(case), partial(retries, case.history)
    samples = sum(seen.share_where(tries) * seen.samples for _, _, seen in at_work)
    share = samples / max(1, sum(seen.samples for _, _, seen in at_work))
    if share < MOSTLY or not any(wakes(case, pid, tid) for pid, tid, _ in at_work):
        return None
    doing = f"backing off and retrying {share:.0%} of the time"
    return found.finding(case, WORKERS_BACK_OFF, doing, share=share, line=found.line(case))


def _restarting(case: Case) -> Finding | None:
    """That ranks end and new ones of the same number take their places; None where none did."""
    found = restarts(case)
    if found is None:
        return None
    often = found.processes > TWICE
    how = "restarts the ranks again and again" if often else "has restarted the ranks once"
    count = f"{found.processes} processes" if often else "a second process"
    culprits = tuple(Culprit(pid=m.pid, rank=m.rank) for m in case.job.ranks[:2])
    facts = Facts(found=found, how=f"the launcher {how}: {count}")
    told = RESTARTS.finding(case, culprits, CERTAIN if often else LOW, **facts)
    return msgspec.structs.replace(told, lost_share=1.0)


WAITS_SHARE = 0.05  # of a core: more is work in the try

Place = tuple[tuple[str, str], tuple[tuple[str, str, int], ...]]  # a function, and the lines that led to its call


def only_tries(case: Case) -> tuple[Member, Profile, float] | None:
    """The first such rank, with its samples and their share: no step between the tries, and it woke for the next one, or is known to."""
    for rank in case.ranks:
        seen, node = case.profile(rank, LATELY_SECONDS), case.chains[rank.pid].start
        if seen.samples < ENOUGH_SAMPLES or seen.seconds < NOW_SECONDS:
            continue
        share = seen.share_where(partial(retries, case.history))
        comes_back = (
            wakes(case, node.pid, node.tid) or next_try_seconds(case.history, node.thread, node.stack) is not None
        )
        share = share if share >= NEARLY_ALL and comes_back else _share_in_one_loop(case, node, seen)
        if share >= NEARLY_ALL:
            return rank, seen, share
    return None


def wakes(case: Case, pid: int, tid: int) -> bool:
    """True if a thread came back from its sleep while we watched."""
    woke = case.history.growth(Thread, pid, tid, of=lambda thread: thread.voluntary_switches)
    return woke is not None and woke[0] >= TWICE


def _share_in_one_loop(case: Case, node: Node, seen: Profile) -> float:
    """Of the samples, those that rest in one loop between tries, or wait in a try of that very loop; 0 for a thread that works."""
    rests = [one.reading for one in seen.sights if retries(case.history, one.reading)]
    places = {place for stack in rests for place in _places(stack)[:1]}
    ran = motion(case.history, node.pid, node.tid, LATELY_SECONDS).run_share
    if len(places) != 1 or ran is None or ran > WAITS_SHARE or seen.seen(*TRAINING_TAGS):
        return 0.0
    if len(seen.runs(partial(retries, case.history))) < TWICE:
        return 0.0
    return seen.share_where(lambda stack: not places.isdisjoint(_places(stack)))


def _places(stack: Stack) -> list[Place]:
    """Every call of the program's own that a stack is in, innermost first: wherever in the called function it is."""
    own = user_frames(stack)
    led = [(frame.file, frame.function, frame.line) for frame in own]
    return [((frame.file, frame.function), tuple(led[index + 1 :])) for index, frame in enumerate(own)]


RULES = (Rule(RETRYING, retrying),)
