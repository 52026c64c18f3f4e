"""What the kernel remembers about a job whose threads run: since when has no batch been taken, and nothing been computed?

A loop that burns CPU leaves no trace of when it began, but its neighbours do.
"""

from itertools import pairwise

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.devices import AUTOGRAD_THREADS
from perfwatch.triage.frames import any_tag, tags
from perfwatch.triage.hang import LONGEST_RECOVERED
from perfwatch.triage.history import Seen
from perfwatch.triage.job import Member
from perfwatch.triage.motion import motion, python_threads, tags_seen
from perfwatch.triage.profile import TRAINING_TAGS
from perfwatch.triage.verdict import Evidence

IMPORT_SECONDS = 4.0  # of run time: importing torch takes 2 to 4 s, and no helper runs meanwhile
HELPED_SECONDS = 0.15  # of run time, below which a helper has not helped
COMPUTED_SECONDS = 0.0003  # of run time; a futile look at the queue takes a tenth
HELPED_SHARE = 0.2  # of what the training thread ran before: with two threads a helper runs a third to all of it


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


def has_come_back(case: Case, rank: Member, silent: float) -> bool:
    """Whether it has been away from training for about as long before, and came back."""
    return silent < LONGEST_RECOVERED * training_lull(case, rank)


def quiet_seconds(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """Seconds for which the training process has trained nothing, by what the kernel remembers of its helper threads.

    The longer of: since it took a batch from its workers, since its compute threads ran; 0 and nothing where neither is known.
    """
    return max(_without_a_batch(case, rank), _without_computing(case, rank), key=lambda one: one[0])


def _without_a_batch(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """For each batch that it takes it sends the worker a new task, through a feeder thread that sleeps in between."""
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


def _without_computing(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """Threads of a compute pool (OpenMP, autograd's own) wait without end for the next operation that is worth sharing."""
    helpers = _helpers(case, rank)
    if not helpers:
        return 0.0, ()
    age, seen = min(helpers, key=lambda one: one[0])
    evidence = case.saw(
        "compute_threads",
        f"pid {rank.pid} thread {seen.reading.tid}",
        "nothing was computed: the threads that share the model's operations have not run",
        f"last ran {age:.0f} s ago (kernel)",
        "run in each step",
        seen.at,
    )
    return age, (evidence,)


def computed(case: Case, rank: Member) -> int:
    """Between how many pairs of looks the model's own threads ran: steps that are too brief for a sample still wake them."""
    times = 0
    for _, helper in _helpers(case, rank):
        looks = case.history.series(r.Thread, rank.pid, helper.reading.tid)
        ran = [one.reading.run_seconds for one in looks if one.reading.run_seconds is not None]
        times = max(times, sum(later - earlier > COMPUTED_SECONDS for earlier, later in pairwise(ran)))
    return times


def _helpers(case: Case, rank: Member) -> list[tuple[float, Seen[r.Thread]]]:
    """When each compute thread last ran (seconds ago).

    Those that did a fair part of the work before: one that only the initialisation needed proves nothing.
    """
    tid = case.progress[rank.pid].thread
    trains = case.history.latest(r.Thread, rank.pid, tid)
    if trains is None or trains.reading.run_seconds is None:
        return []
    share = motion(case.history, rank.pid, tid).run_share or 0.0
    found = []
    for key in case.history.entities(r.Thread):
        seen = case.history.latest(r.Thread, *key) if key[0] == rank.pid and key[1] != tid else None
        if seen is None or seen.reading.ran_ago_seconds is None or not _awaits_work(case, seen.reading):
            continue
        age = seen.reading.ran_ago_seconds + case.at - seen.at
        trained = trains.reading.run_seconds - share * age - IMPORT_SECONDS  # until then
        if (seen.reading.run_seconds or 0.0) >= max(HELPED_SECONDS, HELPED_SHARE * trained):
            found.append((age, seen))
    return found


def _awaits_work(case: Case, thread: r.Thread) -> bool:
    """A thread without Python that waits for work without end, as a pool's does; loops of a process group have timers."""
    wait = thread.wait
    native = case.history.latest(r.Stack, thread.pid, thread.tid) is None
    return native and wait is not None and wait.kind == "futex" and wait.forever and thread.state != "R"


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
