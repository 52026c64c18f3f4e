"""What a training thread does besides training: makes data, or what comes between steps; saves have a rule of their own."""

from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.ranks.calls import waits_for_ranks
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import awaits_a_program, own_work, rests
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.saving import in_save
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Stack

RECEIVES = frozenset({"mp_queue_get", "mp_receive"})
OWN_SHARE = 0.35  # of samples outside of training code: loops that log, count and move batches stay below 0.2
NATIVE_SHARE = 0.3  # of a native profile, in the interpreter or in libraries other than torch's
NEVER_SLEEPS = 0.85  # of a core
# Dumps; with small operations of torch a thread is without the GIL in 80 to 100 % of them. A dump may be torn, or a step be made.
OWNED_LOOKS, OWNED_PER_RELEASED = 4, 6


def does_other_work(case: Case, stack: Stack) -> bool:
    """Whether a stack is in the program's own work, and neither rests, saves nor waits for other ranks."""
    works = own_work(stack) and not rests(case.history, stack) and not waits_for_ranks(case.history, case.job, stack)
    return (works or _unpickles(case, stack) or awaits_a_program(stack)) and not in_save(case, stack)


def _unpickles(case: Case, stack: Stack) -> bool:
    """Whether a thread that never sleeps is in ``get`` of a queue between processes: it makes objects of what came."""
    if not tags(stack) or not tags(stack) <= RECEIVES:
        return False
    return (motion(case.history, stack.pid, stack.tid, WINDOW_SECONDS).run_share or 0.0) >= NEVER_SLEEPS


def keeps_gil(seen: Profile, holds: Callable[[Stack], bool]) -> bool:
    """Whether nearly each dump of several that found a thread at some work saw it own the GIL: it is no arithmetic of torch."""
    known = [one.reading for one in seen.sights if one.reading.owns_gil is not None and holds(one.reading)]
    owned = sum(stack.samples for stack in known if stack.owns_gil)
    released = sum(stack.samples for stack in known) - owned
    return owned >= OWNED_LOOKS and owned >= OWNED_PER_RELEASED * released


def shown(case: Case, rank: Member, seen: Profile, lost: float, native: float | None) -> tuple[Evidence, ...]:
    """What the samples and, where there is one, a native profile show of it."""
    who = f"pid {rank.pid}"
    outside = f"{lost:.0%} of {seen.samples} samples"
    found = [case.saw("stack", who, "is outside of model, backward, optimizer and loader", outside, "below 20 %")]
    if native is not None:
        found.append(case.saw("native", who, "is not in torch's code", f"{native:.0%} of the native profile", "little"))
    return tuple(found)
