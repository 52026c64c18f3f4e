"""Whether a training thread is in torch's compiler, or waits in a backward pass for the thread of the engine that is.

The kernels of a backward pass are compiled when it first runs (inductor compiles it lazily), in autograd's own thread: the training thread
stands in ``backward`` meanwhile, as in any pass, and the card has nothing to do.
"""

from collections.abc import Callable

from perfwatch.probes.readings import Stack
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import stacks_of
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.waits.devices import engine_threads
from perfwatch.triage.words.frames import any_tag, own_frames, tags, tags_of

MOSTLY = 0.5  # of the training thread's samples in backward: an engine that runs no Python has no stack that could be sampled


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
