"""The start of a run: its cost is still in the windows by which slowness is judged."""

from perfwatch.triage.case import Case
from perfwatch.triage.history import median
from perfwatch.triage.roles.job import Member
from perfwatch.triage.words.frames import is_user, own_frames, short_name, tags_of
from perfwatch_probes import readings as r

# After the first step: what imports, the first allocations and the crowd of the start have cost is out of the windows then.
SETTLED_SECONDS = 12.0
# Of a process that was watched from its start and has made no step that anybody counts.
YOUNG_SECONDS = 30.0
BEFORE_SECONDS = 2.0  # a job is started a moment before its watch
# Slow causes that hold however young a run is: events and states, not shares of a window. Restarted ranks always begin.
NOT_BY_SHARES = frozenset({"restart_loop", "mismatched_collective", "degraded_link", "shared_memory_exhausted"})


def beginning(case: Case) -> bool:
    """True if some rank makes its first steps now, or none yet: it is watched from its start, or was seen to import its libraries."""
    return any(_begins(case, rank) or _has_just_imported(case, rank) for rank in case.ranks)


def _begins(case: Case, rank: Member) -> bool:
    counted = case.history.series(r.Steps, rank.pid)
    if not counted:
        return case.session.mode == "run" and _age_seconds(case, rank) < YOUNG_SECONDS
    first, intervals = counted[0], counted[0].reading.interval_seconds
    # Of many steps the first look has the newest intervals alone: those before were as long, as far as anybody knows.
    before = max(sum(intervals), first.reading.count * (median(intervals) or 0.0))
    if len(intervals) < 2 and first.reading.count > 2:
        return False
    return case.at - first.at + before < SETTLED_SECONDS


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
        return YOUNG_SECONDS
    return age + case.at - seen.at
