"""Which readings are of the wait that a thread is in now: an older one tells of where it was, not of what it waits for.

Stacks come in records of a few seconds, descriptors are read on suspicion only, and a look at the thread takes a moment: a
program that goes from one wait to the next may meanwhile hold the descriptor's number with another file behind it, or stand
in another line. Joined, they make a story that never was (a search that starts its next trial "still waits" for the last).
"""

import bisect

from perfwatch.triage.history import History, Seen
from perfwatch_probes import readings as r

LASTING_SECONDS = 0.9  # a shorter nap is part of a loop, whose other stacks tell of the same wait
LATE_SECONDS = 0.3  # a record of stacks is stamped so late at most (measured: 0.1 s on two crowded cores)


def since(history: History, pid: int, tid: int) -> float | None:
    """When a thread came to the wait that it was last seen in; None where it was seen in no other, or none that lasts."""
    return history.once(("since", pid, tid), lambda: _since(history, pid, tid))


def _since(history: History, pid: int, tid: int) -> float | None:
    looks = history.series(r.Thread, pid, tid)
    if not looks or looks[-1].reading.wait is None or not _lasts(looks[-1].reading):
        return None
    wait = _kind(looks[-1].reading)
    came_at = last_ran_at(looks[-1])
    # While it has not run it can have been in no other wait: of a long one the looks need not be gone through.
    before = bisect.bisect_left(looks, came_at, key=lambda look: look.at)
    for look in reversed(looks[:before]):
        if look.reading.state == "R" or look.reading.wait is None:
            continue
        if _kind(look.reading) != wait:
            return came_at
        came_at = last_ran_at(look)
    return None


def _lasts(thread: r.Thread) -> bool:
    """True if the wait is one to stay in, and not a nap or a timed look of a loop."""
    wait = thread.wait
    if wait is None or thread.state == "R" or thread.ran_ago_seconds is None:
        return False
    return wait.forever or thread.ran_ago_seconds + (wait.remaining_seconds or 0.0) >= LASTING_SECONDS


def _kind(thread: r.Thread) -> tuple[object, ...]:
    """What two looks at one wait have in common; not the address, which a lock has anew each time."""
    wait = thread.wait
    return () if wait is None else (wait.kind, wait.fd, wait.polled, wait.path, wait.child_pid, wait.forever)


def last_ran_at(look: Seen[r.Thread]) -> float:
    """When a thread last ran before a look at it."""
    return look.at - (look.reading.ran_ago_seconds or 0.0)


def is_past(history: History, seen: Seen[r.Stack]) -> bool:
    """True if a stack is of an earlier wait than the one that the thread is in."""
    came_at = since(history, seen.reading.pid, seen.reading.tid)
    if came_at is None or seen.at - seen.reading.span_seconds >= came_at:
        return False
    return seen.at < came_at + LATE_SECONDS


def open_file(history: History, pid: int, tid: int, fd: int) -> Seen[r.Descriptor] | None:
    """What is behind a descriptor that a thread waits on; None where that was read before it came to this wait."""
    seen = history.latest(r.Descriptor, pid, fd)
    if seen is None:
        return None
    came_at = since(history, pid, tid)
    if came_at is not None and seen.at < came_at:
        return None
    return None if _outlived(history, tid, seen) else seen


def _outlived(history: History, tid: int, seen: Seen[r.Descriptor]) -> bool:
    """True if one that held it has ended since, and the thread went on: what it waits on now may be another's."""
    look = history.latest(r.Thread, seen.reading.pid, tid)
    if look is None or look.reading.state == "R" or last_ran_at(look) <= seen.at:
        return False
    ends = (history.latest(r.ProcessEnded, pid) for pid in {*seen.reading.readers, *seen.reading.writers})
    return any(end is not None and end.at >= seen.at for end in ends)
