"""A rank that does nothing but try one call again: it rests after each try that failed, or waits in the next one."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.backing_off import next_try_seconds, retries
from perfwatch.triage.words.frames import user_frames
from perfwatch_probes.readings import Stack, Thread

ONLY = 0.9  # of the samples
LONG_ENOUGH_SECONDS = 4.0  # of samples
WOKEN = 2  # times, at least: a single long sleep may be anything
TRIES = 2  # rests of one loop with a try in between
WAITS_SHARE = 0.05  # of a core: more is work in the try

Place = tuple[tuple[str, str], tuple[tuple[str, str, int], ...]]  # a function, and the lines that led to its call


def only_tries(case: Case) -> tuple[Member, Profile, float] | None:
    """The first such rank, with its samples and their share: no step between the tries, and it woke for the next one, or is known to."""
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        if seen.samples < FEW_SAMPLES or seen.seconds < LONG_ENOUGH_SECONDS:
            continue
        node = case.chains[rank.pid].start
        share = seen.share_where(lambda stack: retries(case, stack))
        if share >= ONLY and (wakes(case, node.pid, node.tid) or next_try_seconds(case, node) is not None):
            return rank, seen, share
        share = _share_in_one_loop(case, node, seen)
        if share >= ONLY:
            return rank, seen, share
    return None


def wakes(case: Case, pid: int, tid: int) -> bool:
    """Whether a thread came back from its sleep while we watched."""
    woke = case.history.growth(Thread, pid, tid, of=lambda thread: thread.voluntary_switches)
    return woke is not None and woke[0] >= WOKEN


def _share_in_one_loop(case: Case, node: Node, seen: Profile) -> float:
    """Of the samples, those that rest in one loop between tries, or wait in a try of that very loop; 0 for a thread that works."""
    rests = [one.reading for one in seen.sights if retries(case, one.reading)]
    places = {place for stack in rests for place in _places(stack)[:1]}
    ran = motion(case.history, node.pid, node.tid, WINDOW_SECONDS).run_share
    if len(places) != 1 or ran is None or ran > WAITS_SHARE or seen.seen(*TRAINING_TAGS):
        return 0.0
    if len(seen.runs(lambda stack: retries(case, stack))) < TRIES:
        return 0.0
    return seen.share_where(lambda stack: not places.isdisjoint(_places(stack)))


def _places(stack: Stack) -> list[Place]:
    """Every call of the program's own that a stack is in, innermost first: wherever in the called function it is."""
    own = user_frames(stack)
    led = [(frame.file, frame.function, frame.line) for frame in own]
    return [((frame.file, frame.function), tuple(led[index + 1 :])) for index, frame in enumerate(own)]
