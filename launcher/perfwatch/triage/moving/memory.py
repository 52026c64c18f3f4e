"""What the kernel remembers about a job whose threads run: since when has no batch been taken, and nothing been computed?

A loop that burns CPU leaves no trace of when it began, but its neighbours do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import motion, python_threads, tags_seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.shares.thresholds import BEYOND, MUCH, NOW_SECONDS
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.devices import AUTOGRAD_THREADS, engine_threads
from perfwatch.triage.waits.node import End, Node, threads_of, waits_forever
from perfwatch.triage.waits.polling import sought
from perfwatch.triage.words.frames import user_frame
from perfwatch.verdict import Evidence, Level
from perfwatch_probes import readings as r

GUESSED = Level.MEDIUM  # what goes on now may have begun a moment ago
IMPORT_SECONDS = 4.0  # of run time: importing torch takes 2 to 4 s, and no helper runs meanwhile
HELPED_SECONDS = 0.15  # of run time, below which a helper has not helped
COMPUTED_SECONDS = 0.0003  # of run time; a futile look at the queue takes a tenth


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
    at_steps = case.was_at(rank, "backward", "optimizer", "scaler")
    return at_steps or (steps is not None and steps.count > 0)


def training_lull(case: Case, rank: Member) -> float:
    """The longest time, of those that are over, that this run was seen to spend outside of training code."""
    seen = case.profile(rank).sights
    at = [one.at for one in seen if at_training(one.reading)]
    edges = [seen[0].at - seen[0].reading.span_seconds, *at] if at else []
    return max((later - earlier for earlier, later in pairwise(edges)), default=0.0)


def has_come_back(case: Case, rank: Member, silent: float) -> bool:
    """True if it has been away from training for about as long before, and came back."""
    return silent < BEYOND * training_lull(case, rank)


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
    return _lasting(case, rank, watched, patience, remembered(case, rank, waiting), GUESSED)


def remembered(case: Case, rank: Member, waiting: Node | None = None) -> Quiet:
    """For how long a rank has trained nothing, by what remembers the longest."""
    trained = quiet(case, rank)
    found = (trained if trained.evidence else unwritten(case, rank), unwoken(case, waiting), missed(case, rank))
    return max(found, key=lambda one: one.seconds)


def kept(case: Case, rank: Member, watched: float, patience: float, end: End) -> Lull:
    """How long a wait for a lock or its file, watched for so long, counts as lasting already: it was kept for longer.

    Whoever tries again and again leaves no trace of when it began; a holder outside of the job that has not run since does, and
    a file that was not changed.
    """
    if end.kind == "file_lock":
        return _lasting(case, rank, watched, patience, _held(case, end), 1.0)
    return _lasting(
        case, rank, watched, patience, unchanged(case, end.node.pid, end.detail), GUESSED
    )  # who made it may be at work elsewhere


def _held(case: Case, end: End) -> Quiet:
    held = outside.held_for(case, end)
    if held is None:
        return Quiet()
    return _last_ran(case, held[0], "holder", f"pid {held[1]}", "holds the lock, and has not run", "runs to release it")


def _last_ran(
    case: Case, age: float, witness: str, entity: str, claim: str, expected: str, at: float | None = None
) -> Quiet:
    told = f"last ran {duration(age)} ago (kernel)"
    return Quiet(age, (case.saw(witness, entity, claim, told, expected, at),))


def unchanged(case: Case, pid: int, path: str) -> Quiet:
    """Since a file was changed that a process looks for and that is there: it waits until the file changes, or goes."""
    seen = sought(case.history, pid, path)
    if seen is None or seen.reading.changed_ago_seconds is None:
        return Quiet()
    age = seen.reading.changed_ago_seconds + case.at - seen.at
    told = f"last changed {duration(age)} ago"
    return Quiet(age, (case.saw("file", path, "is there, and stays as it is", told, "changes or goes", seen.at),))


def _lasting(case: Case, rank: Member, watched: float, patience: float, remembered: Quiet, ceiling: float) -> Lull:
    if case.progress[rank.pid].steps is not None or watched >= min(remembered.seconds, patience):
        return Lull(watched, (), 1.0)
    until = remembered.seconds if watched >= NOW_SECONDS else patience - NOW_SECONDS + watched
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
    who = f"pid {node.pid} thread {node.tid}"
    return _last_ran(case, age, "waiter", who, "the training thread waits for it", "runs in each step")


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
    return _last_ran(case, age, "waiter", f"pid {pid}", "waits for it within a step", "runs in each step")


def unfed(case: Case, rank: Member) -> Quiet:
    """Since it last took a batch from its workers.

    For each batch it sends the worker a new task, through a feeder thread that sleeps in between.
    """
    feeders = [
        seen
        for tid in python_threads(case.history, rank.pid)
        if "feeder" in tags_seen(case.history, rank.pid, tid)
        and (seen := case.history.latest(r.Thread, rank.pid, tid)) is not None
        and seen.reading.ran_ago_seconds is not None
    ]
    what = "no batch was taken: the thread that orders the next one has not run"
    return _youngest(case, feeders, "queue", what, "runs for each batch")


def _uncomputed(case: Case, rank: Member) -> Quiet:
    """Since a compute pool last had an operation to share. Of a rank that trains on a GPU, those of the CPU tell nothing."""
    helpers = [] if engine_threads(case.history, rank.pid) else _helpers(case, rank)
    what = "nothing was computed: the threads that share the model's operations have not run"
    return _youngest(case, helpers, "compute_threads", what, "run in each step")


def _youngest(case: Case, threads: list[Seen[r.Thread]], witness: str, claim: str, expected: str) -> Quiet:
    """Since one of these threads last ran, and which; nothing without any."""
    ages = [((seen.reading.ran_ago_seconds or 0.0) + case.at - seen.at, seen) for seen in threads]
    if not ages:
        return Quiet()
    age, seen = min(ages, key=lambda one: one[0])
    return _last_ran(case, age, witness, f"pid {seen.reading.pid} thread {seen.reading.tid}", claim, expected, seen.at)


def computed(case: Case, rank: Member) -> int:
    """Between how many pairs of looks the model's own threads ran: steps that are too brief for a sample still wake them."""
    times = 0
    for helper in _helpers(case, rank):
        looks = case.history.series(r.Thread, rank.pid, helper.reading.tid)
        ran = [one.reading.run_seconds for one in looks if one.reading.run_seconds is not None]
        times = max(times, sum(later - earlier > COMPUTED_SECONDS for earlier, later in pairwise(ran)))
    return times


def _helpers(case: Case, rank: Member) -> list[Seen[r.Thread]]:
    """Its compute threads.

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
            found.append(looks[-1])
    return found


def _has_helped(helper: Seen[r.Thread], trains: Seen[r.Thread], share: float) -> bool:
    """True if a thread ran for a fair part of what the training thread had run when it was last needed."""
    if trains.reading.run_seconds is None or helper.reading.ran_ago_seconds is None:
        return False
    age = helper.reading.ran_ago_seconds + trains.at - helper.at
    trained = trains.reading.run_seconds - share * age - IMPORT_SECONDS
    return (helper.reading.run_seconds or 0.0) >= max(HELPED_SECONDS, MUCH * trained)


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
    found = _youngest(case, threads, "engine", what, "runs in each step")
    return found.seconds, found.evidence


# Logs

FEW_LINES = 8  # alike, fewer do not show how regularly they come
BEGINNING_SECONDS = 10.0  # of a process: what it writes while it starts comes at once, and once
AT_ONCE_SECONDS = 1.0  # by so much the clocks of the readings may differ
OVERDUE = 20.0  # times the usual time between two of those lines


def unwritten(case: Case, rank: Member) -> Quiet:
    """Since a rank last wrote to any of its files, and the log that shows it; nothing where none was written regularly.

    A log may have lines of earlier runs; of this one are no more than its training thread has made calls to write.
    """
    files = [
        seen for key in case.history.of(r.FileGrowth, rank.pid) if (seen := case.history.latest(r.FileGrowth, *key))
    ]
    looks = case.looks(rank)
    known = case.history.latest(r.Process, rank.pid)
    if not files or not looks or known is None or known.reading.age_seconds is None:
        return Quiet()
    age = known.reading.age_seconds + case.at - known.at
    silent = min(_ago(case, one) for one in files)
    log = max(files, key=lambda one: one.reading.alike_lines or 0)
    lines = min(log.reading.alike_lines or 0, looks[-1].reading.write_calls or 0)
    wrote_for = age - _ago(case, log)
    if lines < FEW_LINES or wrote_for < BEGINNING_SECONDS or silent < OVERDUE * wrote_for / lines:
        return Quiet()
    if _writes_elsewhere(looks, case.at - silent) or _has_run(case, looks[-1].reading, silent) > age - silent:
        return Quiet()
    what = f"writes to none of the files that it holds open, among them {log.reading.path}"
    told = f"last written {duration(silent)} ago"
    usual = f"{lines} lines alike over {duration(wrote_for)}"
    return Quiet(silent, (case.saw("log", f"pid {rank.pid}", what, told, usual, log.at),))


def _ago(case: Case, file: Seen[r.FileGrowth]) -> float:
    return file.reading.modified_ago_seconds + case.at - file.at


def _writes_elsewhere(looks: Sequence[Seen[r.Thread]], since: float) -> bool:
    """True if a thread has written since a moment, to a pipe, a terminal or what it closes again, or is not known not to have."""
    calls = [calls for one in looks if one.at >= since and (calls := one.reading.write_calls) is not None]
    return not calls or calls[-1] > calls[0]


def _has_run(case: Case, thread: r.Thread, silent: float) -> float:
    """Seconds that a thread has run before its log fell silent, if it did since then what it does now.

    More than there were: it did something else since, without a word. That it waits for a core now it need not have done before.
    """
    now = motion(case.history, thread.pid, thread.tid)
    share = now.wanted_share
    return (thread.run_seconds or 0.0) - share * silent - AT_ONCE_SECONDS
