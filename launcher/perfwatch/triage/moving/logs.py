"""Since when a rank has written nothing, where it used to write a line again and again: its log fell silent when it did.

What a rank writes at its steps is as regular as they are, and the file remembers its last change.
"""

from collections.abc import Sequence

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r

FEW_LINES = 8  # alike, below which nobody knows how regularly they come
BEGINNING_SECONDS = 10.0  # of a process: what it writes while it starts comes at once, and once
AT_ONCE_SECONDS = 1.0  # by so much the clocks of the readings may differ
OVERDUE = 20.0  # times the usual time between two of those lines


def unwritten(case: Case, rank: Member) -> tuple[float, tuple[Evidence, ...]]:
    """Seconds since a rank last wrote to any of its files, and the log that shows it; 0 where none was written regularly.

    A log may have lines of earlier runs; of this one are no more than its training thread has made calls to write.
    """
    files = [
        seen for key in case.history.of(r.FileGrowth, rank.pid) if (seen := case.history.latest(r.FileGrowth, *key))
    ]
    looks = case.history.series(r.Thread, rank.pid, case.progress[rank.pid].thread)
    known = case.history.latest(r.Process, rank.pid)
    if not files or not looks or known is None or known.reading.age_seconds is None:
        return 0.0, ()
    age = known.reading.age_seconds + case.at - known.at
    silent = min(_ago(case, one) for one in files)
    log = max(files, key=lambda one: one.reading.alike_lines or 0)
    lines = min(log.reading.alike_lines or 0, looks[-1].reading.write_calls or 0)
    wrote_for = age - _ago(case, log)
    if lines < FEW_LINES or wrote_for < BEGINNING_SECONDS or silent < OVERDUE * wrote_for / lines:
        return 0.0, ()
    if _writes_elsewhere(looks, case.at - silent) or _has_run(case, looks[-1].reading, silent) > age - silent:
        return 0.0, ()
    what = f"writes to none of the files that it holds open, among them {log.reading.path}"
    told = f"last written {duration(silent)} ago"
    usual = f"{lines} lines alike over {duration(wrote_for)}"
    return silent, (case.saw("log", f"pid {rank.pid}", what, told, usual, log.at),)


def _ago(case: Case, file: Seen[r.FileGrowth]) -> float:
    return file.reading.modified_ago_seconds + case.at - file.at


def _writes_elsewhere(looks: Sequence[Seen[r.Thread]], since: float) -> bool:
    """Whether a thread has written since a moment, to a pipe, a terminal or what it closes again, or is not known not to have."""
    calls = [calls for one in looks if one.at >= since and (calls := one.reading.write_calls) is not None]
    return not calls or calls[-1] > calls[0]


def _has_run(case: Case, thread: r.Thread, silent: float) -> float:
    """Seconds that a thread has run before its log fell silent, if it did since then what it does now.

    More than there were: it did something else since, without a word. That it waits for a core now it need not have done before.
    """
    now = motion(case.history, thread.pid, thread.tid)
    share = now.wanted_share
    return (thread.run_seconds or 0.0) - share * silent - AT_ONCE_SECONDS
