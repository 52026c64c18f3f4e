"""Before the first step, and just after it: preparation in Python (a vocabulary, an index, a table in memory), and the start of a run.

What the start has cost is still in the windows by which slowness is judged.

The kernels of a backward pass are compiled when it first runs (inductor compiles it lazily), in autograd's own thread: the training thread
stands in ``backward`` meanwhile, as in any pass, and the card has nothing to do.
"""

from collections import Counter
from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.history import History, median
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import quiet
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.moving.work import releases_gil
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.budget import compiles
from perfwatch.triage.shares.own_work import lines_around
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, MANY_SAMPLES, MOSTLY, TWICE
from perfwatch.triage.waits.devices import BEGUN_SECONDS, engine_threads
from perfwatch.triage.words.code import TRAINS, names
from perfwatch.triage.words.frames import is_user, own_frames, short_name, tags, tags_of
from perfwatch_probes import readings as r

UNSURE = 0.55  # of a hang, below what makes a verdict: after the patience nothing is other than before


def prepares(case: Case, rank: Member) -> bool:
    """True if it turns in a loop of Python that has an end, at several lines, and was never seen at training."""
    return has_not_trained(case, rank) and loop_of(case.history, case.chains[rank.pid].end.node).counts


def goes_through_rounds(case: Case, rank: Member) -> bool:
    """True if it has never trained, and turns in loops that have an end within one that waits for a condition.

    A vocabulary is merged in rounds, each over all of the words: a round ends, and how many there will be is not known.
    """
    kinds = loop_of(case.history, case.chains[rank.pid].end.node).kinds
    return kinds[:1] == ("for",) and "while" in kinds and has_not_trained(case, rank)


def prepares_natively(case: Case, rank: Member) -> bool:
    """True if it does so in many native calls, of numpy say: mostly without the GIL."""
    end = case.chains[rank.pid].end
    return (
        end.kind == "native"
        and _untrained(case, rank)
        and loop_of(case.history, end.node).counts
        and releases_gil(case.history, end.node)
    )


def has_not_trained(case: Case, rank: Member) -> bool:
    """True if it runs Python at several lines, was never seen at training, and nothing remembers any."""
    # One long call is ``computing_on_host``, and a thread that waits prepares nothing.
    return case.chains[rank.pid].end.kind == "python" and _untrained(case, rank)


def _untrained(case: Case, rank: Member) -> bool:
    ever = case.profile(rank)
    return (
        ever.samples >= MANY_SAMPLES
        and len(ever.lines()) >= TWICE
        and not ever.seen(*TRAINING_TAGS)
        and quiet(case, rank).seconds == 0.0  # what remembers training has begun it
    )


# After the first step: what imports, the first allocations and the crowd of the start have cost is out of the windows then.
SETTLED_SECONDS = 12.0
BEFORE_SECONDS = 2.0  # a job is started a moment before its watch
# Slow causes that hold however young a run is: events and states, not shares of a window. Restarted ranks always begin.
NOT_BY_SHARES = frozenset({"restart_loop", "mismatched_collective", "degraded_link", "shared_memory_exhausted"})


def beginning(case: Case) -> bool:
    """True if some rank makes its first steps now, or none yet: it is watched from its start, or was seen to import its libraries."""
    return any(_begins(case, rank) or _has_just_imported(case, rank) for rank in case.ranks)


def _begins(case: Case, rank: Member) -> bool:
    counted = case.history.series(r.Steps, rank.pid)
    if not counted:
        return case.session.mode == "run" and _age_seconds(case, rank) < LATELY_SECONDS
    first, intervals = counted[0], counted[0].reading.interval_seconds
    # Of many steps the first look has the newest intervals alone: those before were as long, as far as is known.
    before = max(sum(intervals), first.reading.count * (median(intervals) or 0.0))
    known = len(intervals) >= 2 or first.reading.count <= 2
    return known and case.at - first.at + before < SETTLED_SECONDS


def _has_just_imported(case: Case, rank: Member) -> bool:
    """True if a module of a library was executed a moment ago: torch imports its compiler with the first optimizer."""
    return any(_imports(one.reading) for one in case.profile(rank).sights if one.at > case.at - SETTLED_SECONDS)


def _imports(stack: r.Stack) -> bool:
    """For the program's own code, which may train where it is imported itself; a module is executed once, and looked up often."""
    for frame in own_frames(stack):
        if is_user(frame):
            return False
        if short_name(frame.function) == "exec_module" and "import" in tags_of(frame.function, frame.file):
            return True
    return False


def _age_seconds(case: Case, rank: Member) -> float:
    """Of a process that began when the watch did, or later; of any other it does not matter."""
    seen = case.history.latest(r.Process, rank.pid)
    age = None if seen is None else seen.reading.age_seconds
    if seen is None or age is None or age > seen.at + BEFORE_SECONDS:
        return LATELY_SECONDS
    return age + case.at - seen.at


# The compiler


def in_compiler(history: History, seen: Profile, awaits: bool = False) -> Callable[[r.Stack], bool]:
    """What tells whether a stack of one training thread is in the compiler, or in a backward pass for which it works.

    Args:
        history: where the engine's own stacks are.
        seen: samples of that thread.
        awaits: it is known otherwise that a backward pass waits for the compiler.
    """

    def waits(stack: r.Stack) -> bool:
        return "backward" in tags(stack) and not compiles(stack)

    pid = seen.sights[-1].reading.pid if seen.sights else 0
    looks = [one.reading for tid in engine_threads(history, pid) for one in stacks_of(history, pid, tid, seen.seconds)]
    awaits = awaits or sum(look.samples for look in looks if compiles(look)) > MOSTLY * seen.count(waits)
    return lambda stack: compiles(stack) or (awaits and waits(stack))


def returns(history: History, seen: Profile) -> int:
    """How often a training thread went into the compiler for a forward pass after a step's other parts, known or seen.

    A pass before the first look counts: torch's thread that runs it for a card begins with it, and the kernel remembers when
    that last ran.
    """
    count, passed, first = 0, False, True
    for one in untorn(seen).sights:
        found = tags(one.reading)
        if not found.isdisjoint({"backward", "optimizer"}):
            passed = passed or "compile" not in found
        elif compiles(one.reading):
            passed = passed or (first and passed_before(history, one.reading.pid, one.at - one.reading.span_seconds))
            count += passed
            passed = first = False
    return count


def steps_around(history: History, seen: Profile) -> bool | None:
    """True if the loop in which it compiles makes steps, as its text says; None where no loop with a backward pass was read.

    One that does passes only warms up: each shape is tried once before training.
    """
    lines = [line for one in seen.sights if compiles(one.reading) for line in lines_around(history, one.reading)]
    called = [names(line.loop_calls) for line in lines]
    return any(one >= TRAINS for one in called) if any("backward" in one for one in called) else None


def untorn(seen: Profile) -> Profile:
    """Without torn stacks: the compiler traces backward passes, and the inner half of such a stack looks like one."""
    begun = Counter(_outermost(one.reading) for one in seen.sights).most_common(1)
    return Profile(tuple(one for one in seen.sights if _outermost(one.reading) == begun[0][0]), seen.seconds)


def _outermost(stack: r.Stack) -> tuple[str, str] | None:
    return (stack.frames[-1].function, stack.frames[-1].file) if stack.frames else None


def passed_before(history: History, pid: int, at: float) -> bool:
    """True if a backward pass on a card was over by then."""
    for tid in engine_threads(history, pid):
        looks = history.series(r.Thread, pid, tid)
        ran = next((one for one in looks if (one.reading.run_seconds or 0.0) >= BEGUN_SECONDS), None)
        if ran is not None and ran.reading.ran_ago_seconds is not None and ran.at - ran.reading.ran_ago_seconds < at:
            return True
    return False
