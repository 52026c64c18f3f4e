"""What the kernel remembers about a job whose threads run: since when has no batch been taken?

A loop that burns CPU leaves no trace of when it began, but its neighbours do.
"""

from itertools import pairwise

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.devices import AUTOGRAD_THREADS
from perfwatch.triage.frames import any_tag, tags
from perfwatch.triage.job import Member
from perfwatch.triage.motion import python_threads, tags_seen
from perfwatch.triage.profile import TRAINING_TAGS
from perfwatch.triage.verdict import Evidence


def since_training(case: Case, rank: Member) -> float:
    """Seconds since the training thread was last seen in training code; since it was first looked at, if never."""
    seen = case.profile(rank).sights
    if not seen:
        return 0.0
    for one in reversed(seen):
        if any_tag(tags(one.reading), *TRAINING_TAGS):
            return case.at - one.at
    return case.at - (seen[0].at - seen[0].reading.span_seconds)


def training_lull(case: Case, rank: Member) -> float:
    """The longest time, of those that are over, that this run was seen to spend outside of training code."""
    seen = case.profile(rank).sights
    at = [one.at for one in seen if any_tag(tags(one.reading), *TRAINING_TAGS)]
    edges = [seen[0].at - seen[0].reading.span_seconds, *at] if at else []
    return max((later - earlier for earlier, later in pairwise(edges)), default=0.0)


def quiet_seconds(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """Seconds since the training process last took a batch from its workers; 0 and nothing where it has none.

    For each batch that it takes it sends the worker a new task, through a feeder thread that sleeps in between: the kernel
    remembers when the last of them ran.
    """
    ages = [
        (seen.reading.ran_ago_seconds + case.at - seen.at, seen)
        for tid in python_threads(case.history, rank.pid)
        if "feeder" in tags_seen(case.history, rank.pid, tid)
        and (seen := case.history.latest(r.Thread, rank.pid, tid)) is not None
        and seen.reading.ran_ago_seconds is not None
    ]
    if not ages:
        return 0.0, ()
    age, seen = min(ages, key=lambda one: one[0])
    evidence = case.saw(
        "queue",
        f"pid {rank.pid} thread {seen.reading.tid}",
        "no batch was taken: the thread that orders the next one has not run",
        f"last ran {age:.0f} s ago (kernel)",
        "runs for each batch",
        seen.at,
    )
    return age, (evidence,)


def engine_quiet(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]] | None:
    """Seconds since a backward pass last ran on a GPU; None where torch's engine has no thread for one, or where it runs now.

    That thread sleeps between two passes, and the kernel remembers when it last ran.
    """
    ages = []
    for pid, tid in case.history.entities(r.Thread):
        seen = case.history.latest(r.Thread, pid, tid) if pid == rank.pid else None
        if seen is None or not seen.reading.name.startswith(AUTOGRAD_THREADS):
            continue
        if seen.reading.state == "R" or seen.reading.ran_ago_seconds is None:
            return None
        ages.append((seen.reading.ran_ago_seconds + case.at - seen.at, seen))
    if not ages:
        return None
    age, seen = min(ages, key=lambda one: one[0])
    evidence = case.saw(
        "engine",
        f"pid {rank.pid} thread {seen.reading.tid}",
        "no backward pass: the thread that runs them has not run",
        f"last ran {age:.1f} s ago (kernel)",
        "runs in each step",
        seen.at,
    )
    return age, (evidence,)
