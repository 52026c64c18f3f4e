"""What the kernel remembers about a job whose threads run: since when has no batch been taken, and nothing been computed?

A loop that burns CPU leaves no trace of when it began, but its neighbours do.
"""

from dataclasses import dataclass
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.logs import unwritten
from perfwatch.triage.moving.motion import motion, python_threads, tags_seen, was_at
from perfwatch.triage.patience import LONGEST_RECOVERED
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.devices import AUTOGRAD_THREADS, engine_threads
from perfwatch.triage.waits.node import End, Node, threads_of, waits_forever
from perfwatch.triage.waits.polling import sought
from perfwatch.triage.words.frames import user_frame
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r

WATCHED_SECONDS = 5.0  # of what is going on now, before the time since training may shorten the patience for it
GUESSED = 0.78  # what goes on now may have begun a moment ago
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
        if at_training(one.reading):
            return case.at - one.at
    return case.at - (seen[0].at - seen[0].reading.span_seconds)


def has_trained(case: Case, rank: Member) -> bool:
    """True if a step of a rank was counted, or seen at a backward pass or an optimizer, or if a backward pass has left its threads.

    torch starts a thread for each card that it sees with the first backward pass, be it on the CPU (torch/csrc/autograd/engine.cpp).
    """
    if any(one.name.startswith(AUTOGRAD_THREADS) for one in threads_of(case.history, rank.pid)):
        return True
    steps = case.steps(rank)
    at_steps = was_at(case.history, rank.pid, case.progress[rank.pid].thread, "backward", "optimizer", "scaler")
    return at_steps or (steps is not None and steps.count > 0)


def training_lull(case: Case, rank: Member) -> float:
    """The longest time, of those that are over, that this run was seen to spend outside of training code."""
    seen = case.profile(rank).sights
    at = [one.at for one in seen if at_training(one.reading)]
    edges = [seen[0].at - seen[0].reading.span_seconds, *at] if at else []
    return max((later - earlier for earlier, later in pairwise(edges)), default=0.0)


def has_come_back(case: Case, rank: Member, silent: float) -> bool:
    """Whether it has been away from training for about as long before, and came back."""
    return silent < LONGEST_RECOVERED * training_lull(case, rank)


def has_come_back_from(case: Case, rank: Member, frame: r.Frame | None, silent: float) -> bool:
    """The same, where it was at this very line before it last trained: what it waits for there has come before."""
    sights = case.profile(rank).sights
    trained = max((one.at for one in sights if at_training(one.reading)), default=0.0)
    was_here = any(one.at < trained and user_frame(one.reading) == frame for one in sights)
    return was_here and has_come_back(case, rank, silent)


@dataclass(frozen=True)
class Quiet:
    """For how long a rank has trained nothing, as the kernel remembers it; 0 seconds where it remembers nothing."""

    seconds: float = 0.0
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Lull:
    """For how long something that might end has lasted, and how sure a verdict on it may be."""

    seconds: float
    evidence: tuple[Evidence, ...]
    ceiling: float


def lull(case: Case, rank: Member, watched: float, patience: float, waiting: Node | None = None) -> Lull:
    """How long a wait or a computation, watched for so long, counts as lasting already.

    It tells nothing of when it began, so the time since anything was trained speaks for it, or for how long the training
    thread (``waiting``) has slept until it is over: after a while of watching, and without certainty. Where steps are counted
    no such guess is needed.
    """
    trained = quiet(case, rank)
    if not trained.evidence:
        trained = Quiet(*unwritten(case, rank))
    remembered = max(trained, unwoken(case, waiting), missed(case, rank), key=lambda one: one.seconds)
    return _lasting(case, rank, watched, patience, remembered, GUESSED)


def kept(case: Case, rank: Member, watched: float, patience: float, end: End) -> Lull:
    """How long a wait for a lock or its file, watched for so long, counts as lasting already: it was kept for longer.

    Whoever tries again and again leaves no trace of when it began; a holder outside of the job that has not run since does, and
    a file that was not changed.
    """
    if end.kind == "file_lock":
        return _lasting(case, rank, watched, patience, _held(case, end), 1.0)
    return _lasting(case, rank, watched, patience, _stays(case, end), GUESSED)  # who made it may be at work elsewhere


def _held(case: Case, end: End) -> Quiet:
    held = outside.held_for(case, end)
    if held is None:
        return Quiet()
    age, pid = held
    told = f"last ran {duration(age)} ago (kernel)"
    return Quiet(
        age, (case.saw("holder", f"pid {pid}", "holds the lock, and has not run", told, "runs to let go of it"),)
    )


def _stays(case: Case, end: End) -> Quiet:
    """Since a file was changed that a loop looks for and that is there: the loop waits until it changes, or goes."""
    seen = sought(case.history, end.node.pid, end.detail)
    if seen is None or seen.reading.changed_ago_seconds is None:
        return Quiet()
    age = seen.reading.changed_ago_seconds + case.at - seen.at
    told = f"last changed {duration(age)} ago"
    return Quiet(age, (case.saw("file", end.detail, "is there, and stays as it is", told, "changes or goes", seen.at),))


def _lasting(case: Case, rank: Member, watched: float, patience: float, remembered: Quiet, ceiling: float) -> Lull:
    if case.progress[rank.pid].steps is not None or watched >= min(remembered.seconds, patience):
        return Lull(watched, (), 1.0)
    until = remembered.seconds if watched >= WATCHED_SECONDS else patience - WATCHED_SECONDS + watched
    return Lull(min(remembered.seconds, until), remembered.evidence, ceiling)


def quiet(case: Case, rank: Member) -> Quiet:
    """The shorter of what is known: if batches were taken a moment ago, threads that have been idle for long prove nothing."""
    known = [one for one in (unfed(case, rank), _uncomputed(case, rank)) if one.evidence]
    return min(known, key=lambda one: one.seconds, default=Quiet())


def unwoken(case: Case, node: Node | None) -> Quiet:
    """Since a training thread that waits without a time limit fell asleep: it has trained nothing since."""
    if node is None or not waits_forever(node) or node.thread is None or node.thread.ran_ago_seconds is None:
        return Quiet()
    age = node.thread.ran_ago_seconds + case.at - node.thread_at
    told = f"last ran {duration(age)} ago (kernel)"
    who = f"pid {node.pid} thread {node.tid}"
    return Quiet(age, (case.saw("waiter", who, "the training thread waits for it", told, "runs in each step"),))


def missed(case: Case, rank: Member) -> Quiet:
    """For how long all other ranks have waited for this one within a step, in its collective.

    A barrier around what one rank does for all, an evaluation or a save, is no part of a step, and tells nothing.
    """
    waits: list[tuple[float, int]] = []
    for other in case.ranks:
        node, end = case.chains[other.pid].start, case.chains[other.pid].end
        if other.pid == rank.pid:
            continue
        if end.kind != "collective" or not end.still or node.stack is None or not at_training(node.stack):
            return Quiet()
        waits.append((unwoken(case, node).seconds, node.pid))
    if not waits:
        return Quiet()
    age, pid = min(waits)
    told = f"last ran {duration(age)} ago (kernel)"
    return Quiet(age, (case.saw("waiter", f"pid {pid}", "waits for it within a step", told, "runs in each step"),))


def unfed(case: Case, rank: Member) -> Quiet:
    """Since it last took a batch from its workers.

    For each batch it sends the worker a new task, through a feeder thread that sleeps in between.
    """
    feeders = [
        _aged(case, seen)
        for tid in python_threads(case.history, rank.pid)
        if "feeder" in tags_seen(case.history, rank.pid, tid)
        and (seen := case.history.latest(r.Thread, rank.pid, tid)) is not None
        and seen.reading.ran_ago_seconds is not None
    ]
    if not feeders:
        return Quiet()
    what = "no batch was taken: the thread that orders the next one has not run"
    return Quiet(*_youngest(case, feeders, "queue", what, "runs for each batch"))


def _uncomputed(case: Case, rank: Member) -> Quiet:
    """Since a compute pool last had an operation to share. Of a rank that trains on a GPU, those of the CPU tell nothing."""
    helpers = [] if engine_threads(case.history, rank.pid) else _helpers(case, rank)
    if not helpers:
        return Quiet()
    what = "nothing was computed: the threads that share the model's operations have not run"
    return Quiet(*_youngest(case, helpers, "compute_threads", what, "run in each step"))


def _youngest(
    case: Case, aged: list[tuple[float, Seen[r.Thread]]], witness: str, claim: str, expected: str
) -> tuple[float, tuple[Evidence, ...]]:
    """The thread that ran last, and what it tells."""
    age, seen = min(aged, key=lambda one: one[0])
    entity = f"pid {seen.reading.pid} thread {seen.reading.tid}"
    return age, (case.saw(witness, entity, claim, f"last ran {duration(age)} ago (kernel)", expected, seen.at),)


def _aged(case: Case, seen: Seen[r.Thread]) -> tuple[float, Seen[r.Thread]]:
    return (seen.reading.ran_ago_seconds or 0.0) + case.at - seen.at, seen


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
    trains = case.history.series(r.Thread, rank.pid, tid)
    share = motion(case.history, rank.pid, tid).run_share or 0.0
    found = []
    for key in case.history.of(r.Thread, rank.pid):
        looks = case.history.series(r.Thread, *key) if key[1] != tid else []
        if not looks or looks[-1].reading.ran_ago_seconds is None or not _awaits_work(case, looks[-1].reading):
            continue
        # What it did before the first look counts as well: one brief step since then hides how long the others took.
        if any(_has_helped(one, trains[at], share) for at, one in ((0, looks[0]), (-1, looks[-1])) if trains):
            found.append((_aged(case, looks[-1])[0], looks[-1]))
    return found


def _has_helped(helper: Seen[r.Thread], trains: Seen[r.Thread], share: float) -> bool:
    """Whether a thread ran for a fair part of what the training thread had run when it was last needed."""
    if trains.reading.run_seconds is None or helper.reading.ran_ago_seconds is None:
        return False
    age = helper.reading.ran_ago_seconds + trains.at - helper.at
    trained = trains.reading.run_seconds - share * age - IMPORT_SECONDS
    return (helper.reading.run_seconds or 0.0) >= max(HELPED_SECONDS, HELPED_SHARE * trained)


def _awaits_work(case: Case, thread: r.Thread) -> bool:
    """A thread without Python that waits for work without end, as a pool's does; loops of a process group have timers."""
    wait = thread.wait
    native = case.history.latest(r.Stack, thread.pid, thread.tid) is None
    return native and wait is not None and wait.kind == "futex" and wait.forever and thread.state != "R"


def engine_quiet(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]] | None:
    """Seconds since a backward pass last ran on a GPU; None where torch's engine has no thread for one, or where it runs now.

    That thread sleeps between two passes, and the kernel remembers when it last ran.
    """
    tids = engine_threads(case.history, rank.pid)
    threads = [seen for tid in tids if (seen := case.history.latest(r.Thread, rank.pid, tid))]
    if not threads or any(one.reading.state == "R" or one.reading.ran_ago_seconds is None for one in threads):
        return None
    what = "no backward pass: the thread that runs them has not run"
    return _youngest(case, [_aged(case, one) for one in threads], "engine", what, "runs in each step")
