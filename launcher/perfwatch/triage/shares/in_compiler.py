"""Time in torch's compiler: in the training thread, or in the autograd thread for which its backward pass waits.

The kernels of a backward pass are compiled when it first runs (inductor compiles it lazily), in autograd's own thread: the training thread
stands in ``backward`` meanwhile, as in any pass, and the card has nothing to do.
"""

from collections import Counter
from collections.abc import Callable

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import MOSTLY
from perfwatch.triage.waits.devices import BEGUN_SECONDS, engine_threads
from perfwatch.triage.words.code import TRAINS, line_of, names
from perfwatch.triage.words.frames import any_tag, own_frames, tags, tags_of, user_frames
from perfwatch_probes.readings import Stack, Thread


def compiles(stack: Stack) -> bool:
    """In the compiler, what it imports for its work included; not in the import of it, which the first optimizer step of any program makes.

    Of the two, the outer one says what the thread is at.
    """
    for frame in reversed(own_frames(stack)):
        found = tags_of(frame.function, frame.file)
        if any_tag(found, "compile", "import"):
            return "compile" in found
    return False


def in_compiler(history: History, seen: Profile, awaits: bool = False) -> Callable[[Stack], bool]:
    """What tells whether a stack of one training thread is in the compiler, or in a backward pass for which it works.

    Args:
        history: where the engine's own stacks are.
        seen: samples of that thread.
        awaits: it is known otherwise that a backward pass waits for the compiler.
    """
    waits = seen.share_where(_in_backward) * seen.samples
    pid = seen.sights[-1].reading.pid if seen.sights else 0
    looks = [one.reading for tid in engine_threads(history, pid) for one in stacks_of(history, pid, tid, seen.seconds)]
    awaits = awaits or sum(look.samples for look in looks if compiles(look)) > MOSTLY * waits
    return lambda stack: compiles(stack) or (awaits and _in_backward(stack))


def _in_backward(stack: Stack) -> bool:
    return "backward" in tags(stack) and not compiles(stack)


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
    found = None
    for one in seen.sights:
        for frame in user_frames(one.reading) if compiles(one.reading) else ():
            source = line_of(history, frame)
            called = names(source.loop_calls) if source is not None else frozenset()
            if called >= TRAINS:
                return True
            found = False if "backward" in called else found
    return found


def untorn(seen: Profile) -> Profile:
    """Without torn stacks: the compiler traces backward passes, and the inner half of such a stack looks like one."""
    begun = Counter(_outermost(one.reading) for one in seen.sights).most_common(1)
    return Profile(tuple(one for one in seen.sights if _outermost(one.reading) == begun[0][0]), seen.seconds)


def _outermost(stack: Stack) -> tuple[str, str] | None:
    return (stack.frames[-1].function, stack.frames[-1].file) if stack.frames else None


def passed_before(history: History, pid: int, at: float) -> bool:
    """True if a backward pass on a card was over by then."""
    for tid in engine_threads(history, pid):
        looks = history.series(Thread, pid, tid)
        ran = next((one for one in looks if (one.reading.run_seconds or 0.0) >= BEGUN_SECONDS), None)
        if ran is not None and ran.reading.ran_ago_seconds is not None and ran.at - ran.reading.ran_ago_seconds < at:
            return True
    return False
