"""Processes outside of the job that hold a lock which one of it waits for, or could empty its full pipe: do they rest, and for ever?

Of them only numbers are known: what they have used, and what the kernel says of their threads. One that rests may wait for
something that comes, so it is watched before its victim is called hung, and that is said with less confidence.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.motion import has_ended, motion
from perfwatch.triage.waits.node import End
from perfwatch_probes.readings import Descriptor, ProcessUsage, Thread

WATCHED_SECONDS = 3.0
UNREADABLE_SECONDS = 10.0  # after these it is not looked at any more whether it can be read: its file may be hidden
NAP_SECONDS = 10.0  # a shorter sleep is one of many: who polls or backs off wakes, and sleeps again
JUST_WOKEN_SECONDS = 2.0  # by then a later look has told what it does instead
HELD_BY_OTHERS = (
    "file_lock",
    "pipe_full",
)  # ends that others hold: a lock, or the only end from which a pipe could be emptied


def holders(case: Case, end: End) -> tuple[int, ...]:
    """Those who hold the lock, or the other side of the full pipe, at the end of a chain and are no members of the job."""
    return tuple(pid for pid in end.others if pid not in case.job.members) if end.kind in HELD_BY_OTHERS else ()


def workers(case: Case, end: End) -> tuple[int, ...]:
    """What holders outside of the job have started: it works for them, perhaps."""
    if end.descriptor is None or not holders(case, end):
        return ()
    return tuple(pid for pid in end.descriptor.holders_started if pid not in case.job.members)


def said(case: Case, pid: int) -> str:
    """A process outside of the job, and the call in which its main thread waits."""
    look = case.history.latest(Thread, pid, pid)
    if look is not None and look.reading.state == "T":
        return f"pid {pid} outside of the job, which is stopped"
    wait = look.reading.wait if look is not None else None
    return f"pid {pid} outside of the job" + (f", which waits in {wait.call}" if wait is not None else "")


def unwatched_seconds(case: Case, end: End) -> float:
    """For how much longer those outside must be watched; 0 where there are none, and where they cannot be."""
    pids = (*holders(case, end), *workers(case, end))
    if not pids:
        return 0.0
    spans = [span for pid in pids if (span := case.history.span(ProcessUsage, pid)) is not None]
    if len(spans) == len(pids):
        return max(0.0, WATCHED_SECONDS - min(spans))
    return max(0.0, UNREADABLE_SECONDS - _named_for(case, end))


def ceiling(case: Case, end: End) -> float:
    """The most that a hang may be said with where it depends on a process outside of the job."""
    pids = (*holders(case, end), *workers(case, end))
    return 1.0 if all(_rests_for_ever(case, pid) for pid in pids) else MAY_COME


def asks_elsewhere(case: Case, end: End) -> bool:
    """Whether each thread of theirs rests for ever, or in a read without a deadline: for a key, as a pager does."""
    looks = [look for pid in holders(case, end) for look in _looks(case, pid)]
    return bool(looks) and all(look is not None and _asks(case, look.reading) for look in looks)


def _asks(case: Case, thread: Thread) -> bool:
    return _for_ever(case, thread) or (thread.wait is not None and thread.wait.kind == "read")


def wakes_in(case: Case, end: End) -> float | None:
    """Seconds until a holder outside, or what it has started, wakes from a sleep that is no nap; None where none sleeps so."""
    looks = (case.history.latest(Thread, pid, pid) for pid in (*holders(case, end), *workers(case, end)))
    left = [seconds for look in looks if look is not None and (seconds := _sleeps_for(case, look)) is not None]
    return min(left, default=None)


def held_for(case: Case, end: End) -> tuple[float, int] | None:
    """For how many seconds the lock has been held at least, and by whom: no thread of its holders, or of what they started, ran since.

    What does not run takes no lock. None where a holder is a member of the job, or not all of its threads are known.
    """
    pids = holders(case, end)
    if not pids or len(pids) < len(end.others):
        return None
    rested = min(_rested(case, pid) for pid in (*pids, *workers(case, end)))
    return (rested, pids[0]) if rested > 0.0 else None


def _rested(case: Case, pid: int) -> float:
    """Seconds since any thread of a process ran; 0 where that is not known of all of them."""
    looks = _looks(case, pid)
    ages = [
        look.reading.ran_ago_seconds + case.at - look.at
        for look in looks
        if look is not None and look.reading.ran_ago_seconds is not None and look.reading.state != "R"
    ]
    return min(ages) if ages and len(ages) == len(looks) else 0.0


def _looks(case: Case, pid: int) -> list[Seen[Thread] | None]:
    """The latest look at each thread of a process; empty where there are more than were looked at."""
    used = case.history.latest(ProcessUsage, pid)
    looks = [
        case.history.latest(Thread, *key) for key in case.history.of(Thread, pid) if not has_ended(case.history, *key)
    ]
    return looks if used is not None and len(looks) >= used.reading.threads else []


def _sleeps_for(case: Case, look: Seen[Thread]) -> float | None:
    wait = look.reading.wait
    if wait is None or wait.kind != "sleep" or wait.remaining_seconds is None:
        return None
    left = wait.remaining_seconds - (case.at - look.at)
    whole = wait.remaining_seconds + (look.reading.ran_ago_seconds or 0.0)
    return max(0.0, left) if whole >= NAP_SECONDS and left > -JUST_WOKEN_SECONDS else None


def _rests_for_ever(case: Case, pid: int) -> bool:
    """Whether all threads of a process are stopped, or wait without a deadline for what only another one of them can do."""
    looks = _looks(case, pid)
    return bool(looks) and all(look is not None and _for_ever(case, look.reading) for look in looks)


def _for_ever(case: Case, thread: Thread) -> bool:
    if thread.state == "T":
        return True
    wait = thread.wait
    if wait is None or motion(case.history, thread.pid, thread.tid).frozen is not True:
        return False
    return wait.call == "pause" or (wait.kind == "futex" and wait.forever and not wait.shared)


def _named_for(case: Case, end: End) -> float:
    """Seconds since a holder outside was first named."""
    if end.descriptor is None:
        return 0.0
    looks = case.history.series(Descriptor, end.node.pid, end.descriptor.fd)
    named = [look.at for look in looks if {*look.reading.lock_holders, *look.reading.readers}.intersection(end.others)]
    return case.at - min(named, default=case.at)
