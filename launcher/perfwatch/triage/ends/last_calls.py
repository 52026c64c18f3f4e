"""Who was behind in which collective when NCCL's watchdog ended the ranks: their flight recorders say so, where all wrote a dump.

When a collective has timed out, the watchdog has every rank write what it has called, and aborts the process seconds later (torch,
ProcessGroupNCCL.cpp: the dump is waited for before the abort). So what lies there is about a job that stood.
"""

import signal

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import LOOKS_APART_SECONDS, ended_at
from perfwatch.triage.history import Seen
from perfwatch.triage.ranks.groups import GroupKey, Seat, Standing, recorded_standing
from perfwatch.triage.roles.job import Member
from perfwatch_probes import readings as r

ABORTS_SECONDS = 60.0  # from the dump to the end; torch waits 15 s for all dumps by default
MOST_NAMED = 4


def was_aborted(case: Case) -> bool:
    """True if a rank has aborted, as it does when NCCL's watchdog ends it."""
    return any(rank.ended is not None and rank.ended.signal == signal.SIGABRT for rank in case.job.ranks)


def left_behind_at_the_end(case: Case) -> Standing | None:
    """The group in which some ranks had called less often than the others; None where the dumps do not tell, or of several."""
    if not was_aborted(case):
        return None
    groups: dict[GroupKey, list[Seen[r.RecordedGroup]]] = {}
    for rank in case.job.ranks:
        for key in case.history.of(r.RecordedGroup, rank.pid):
            last = case.history.latest(r.RecordedGroup, *key)
            if last is not None and _of_the_end(case, rank, last) and last.reading.enqueued is not None:
                groups.setdefault((last.reading.group, last.reading.members), []).append(last)
    whole = [
        recorded_standing(group, dumps, 0.0, 0.0)
        for (group, _), dumps in groups.items()
        if len(dumps) >= max(2, len(dumps[0].reading.members))
    ]
    parted = [one for one in whole if one.behind]
    return parted[0] if len(parted) == 1 else None


def last_calls(standing: Standing) -> str:
    """``rank 1 had not come to all_reduce 3199, in which rank 0 waited``."""
    return f"{_listed(standing.behind)} had not come to {standing.operation}, in which {_listed(standing.ahead)} waited"


def _of_the_end(case: Case, rank: Member, dump: Seen[r.RecordedGroup]) -> bool:
    """True if a rank wrote a dump by itself shortly before it ended."""
    if rank.ended is None or dump.reading.origin != "file":
        return False
    before = ended_at(case, rank.ended) - (dump.at - dump.reading.written_ago_seconds)
    return -LOOKS_APART_SECONDS <= before <= ABORTS_SECONDS


def _listed(seats: tuple[Seat, ...]) -> str:
    more = f" and {len(seats) - MOST_NAMED} more" if len(seats) > MOST_NAMED else ""
    return ", ".join(seat.name for seat in seats[:MOST_NAMED]) + more
