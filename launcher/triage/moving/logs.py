"""Since when a rank has written nothing, where it used to write a line again and again: its log fell silent when it did.

What a rank writes at its steps is as regular as they are, and the file remembers its last change.
"""

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.verdict import Evidence

FEW_LINES = 8  # alike, below which nobody knows how regularly they come
BEGINNING_SECONDS = 10.0  # of a process: what it writes while it starts comes at once, and once
OVERDUE = 20.0  # times the usual time between two of those lines


def unwritten(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """Seconds since a rank last wrote to any of its files, and the log that shows it; 0 where none was written regularly.

    A log may have lines of earlier runs; of this one are no more than its training thread has made calls to write.
    """
    files = [
        seen for key in case.history.of(r.FileGrowth, rank.pid) if (seen := case.history.latest(r.FileGrowth, *key))
    ]
    known = case.history.latest(r.Process, rank.pid)
    if not files or known is None or known.reading.age_seconds is None:
        return 0.0, ()
    age = known.reading.age_seconds + case.at - known.at
    silent = min(one.reading.modified_ago_seconds + case.at - one.at for one in files)
    log = max(files, key=lambda one: one.reading.alike_lines or 0)
    thread = case.history.latest(r.Thread, rank.pid, case.progress[rank.pid].thread)
    calls = thread.reading.write_calls if thread is not None else None
    lines = min(log.reading.alike_lines or 0, calls or 0)
    wrote_for = age - (log.reading.modified_ago_seconds + case.at - log.at)
    if lines < FEW_LINES or wrote_for < BEGINNING_SECONDS or silent < OVERDUE * wrote_for / lines:
        return 0.0, ()
    what = f"writes to none of its files, among them {log.reading.path}"
    told = f"last written {silent:.0f} s ago"
    usual = f"{lines} lines alike over {wrote_for:.0f} s"
    return silent, (case.saw("log", f"pid {rank.pid}", what, told, usual, log.at),)
