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
# Ends that others hold: a lock, or the only end from which a pipe could be emptied.
HELD_BY_OTHERS = ("file_lock", "pipe_full")


def holders(case: Case, end: End) -> tuple[int, ...]:
    """Those that hold the lock, or the other side of the full pipe, at the end of a chain and are no members of the job."""
    return tuple(pid for pid in end.others if pid not in case.job.members) if end.kind in HELD_BY_OTHERS else ()


def _involved(case: Case, end: End) -> tuple[int, ...]:
    """The holders outside of the job, and what they have started: it works for them, perhaps."""
    pids = holders(case, end)
    started = end.descriptor.holders_started if pids and end.descriptor is not None else ()
    return (*pids, *(pid for pid in started if pid not in case.job.members))


def program(end: End, pid: int) -> str:
    """What a holder of a lock runs, in brackets; empty where that is not known."""
    file = end.descriptor
    known = dict(zip(file.lock_holders, file.holders_run, strict=False)) if file is not None else {}
    return f" ({known[pid]})" if known.get(pid) else ""


def said(case: Case, end: End, pid: int) -> str:
    """A process outside of the job, and the call in which its main thread waits."""
    who = f"pid {pid}{program(end, pid)} outside of the job"
    look = case.history.latest(Thread, pid, pid)
    if look is not None and look.reading.state == "T":
        return f"{who}, which is stopped"
    wait = look.reading.wait if look is not None else None
    return who + (f", which waits in {wait.call}" if wait is not None else "")


def unwatched_seconds(case: Case, end: End) -> float:
    """For how much longer those outside must be watched; 0 where there are none, and where they cannot be."""
    pids = _involved(case, end)
    if not pids:
        return 0.0
    spans = [span for pid in pids if (span := case.history.span(ProcessUsage, pid)) is not None]
    if len(spans) == len(pids):
        return max(0.0, WATCHED_SECONDS - min(spans))
    known = case.history.series(Descriptor, end.node.pid, end.descriptor.fd) if end.descriptor is not None else []
    named = [one.at for one in known if {*one.reading.lock_holders, *one.reading.readers}.intersection(end.others)]
    return max(0.0, UNREADABLE_SECONDS - (case.at - min(named, default=case.at)))


def ceiling(case: Case, end: End) -> float:
    """The most that a hang may be said with that depends on a process outside of the job, of which a thread may act."""
    looks = [_looks(case, pid) for pid in _involved(case, end)]
    return 1.0 if all(one and all(_for_ever(case, look.reading) for look in one) for one in looks) else MAY_COME


def asks_elsewhere(case: Case, end: End) -> bool:
    """True if each thread of theirs rests for ever, or in a read without a deadline: for a key, as a pager does."""
    threads = [look.reading for pid in holders(case, end) for look in _looks(case, pid)]
    reads = (one.wait is not None and one.wait.kind == "read" for one in threads)
    return bool(threads) and all(read or _for_ever(case, one) for read, one in zip(reads, threads, strict=True))


def held_for(case: Case, end: End) -> tuple[float, int] | None:
    """For how many seconds the lock has been held at least, and by what: no thread of its holders, or of what they started, ran since.

    What does not run takes no lock. None where a holder is a member of the job, or not all of its threads are known.
    """
    pids = holders(case, end)
    if not pids or len(pids) < len(end.others):
        return None
    known = [_looks(case, pid) for pid in _involved(case, end)]
    looks = [look for one in known for look in one]
    ages = [
        case.at - look.at + look.reading.ran_ago_seconds for look in looks if look.reading.ran_ago_seconds is not None
    ]
    ran = not all(known) or len(ages) < len(looks) or any(look.reading.state == "R" for look in looks)
    return None if ran or min(ages) <= 0.0 else (min(ages), pids[0])


def _looks(case: Case, pid: int) -> list[Seen[Thread]]:
    """The latest look at each thread of a process; empty where there are more than were looked at."""
    used = case.history.latest(ProcessUsage, pid)
    keys = (key for key in case.history.of(Thread, pid) if not has_ended(case.history, *key))
    looks = [look for key in keys if (look := case.history.latest(Thread, *key)) is not None]
    return looks if used is not None and len(looks) >= used.reading.threads else []


def _for_ever(case: Case, thread: Thread) -> bool:
    """True if a thread is stopped, or waits without a deadline for what only another thread of its process can do."""
    if thread.state == "T":
        return True
    wait, still = thread.wait, motion(case.history, thread.pid, thread.tid).frozen is True
    inside = wait is not None and (wait.call == "pause" or (wait.kind == "futex" and wait.forever and not wait.shared))
    return still and inside
