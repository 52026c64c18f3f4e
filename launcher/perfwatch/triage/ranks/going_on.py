"""Whether ranks that meet in each step make steps, as far as their threads, the kernel and the counts tell."""

from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion, moves
from perfwatch.triage.patience import wakes_soon
from perfwatch.triage.ranks import lateness
from perfwatch.triage.roles.job import Member
from perfwatch.triage.slowness import WINDOW_SECONDS

OVERDUE_SECONDS, OVERDUE = 3.0, 2.5  # times the longest step lately, not that of minutes ago
WOKEN = 3  # that often: less may be what led up to a hang


def go_on(case: Case) -> bool:
    """Whether steps are made: of ranks that meet in each step one goes on only if all do, however still one looks in between."""
    going = [case.progress[rank.pid].kind != "still" or _comes_back(case, rank) for rank in case.ranks]
    return any(going) and all(
        goes or wakes_soon(case, case.chains[rank.pid].end) for rank, goes in zip(case.ranks, going, strict=True)
    )


def overdue(case: Case) -> bool:
    """Whether the count of steps stands still for far longer than steps take: late is not the word then."""
    clocks = [clock for rank in case.ranks if (clock := case.steps(rank)) is not None and clock.usual]
    return any((one.ago_seconds or 0.0) > max(OVERDUE_SECONDS, OVERDUE * max(one.usual)) for one in clocks)


def _comes_back(case: Case, rank: Member) -> bool:
    """Whether a rank that nearly always waits was seen to leave the wait and come back, or was let go on again and again.

    The steps in between may take microseconds, which no look meets; the kernel counts each time that the thread was woken. One that
    spins for its card is never woken, and runs all the same.
    """
    if lateness.meets_again(case, rank, WINDOW_SECONDS) or lateness.is_waited_for(case, rank, WINDOW_SECONDS):
        return True
    seen, thread = case.profile(rank, WINDOW_SECONDS), case.progress[rank.pid].thread
    if motion(case.history, rank.pid, thread).switches_per_second == 0.0:
        return False
    moved = moves(case.history, rank.pid, thread)
    return moved.recurrent and moved.times >= WOKEN and seen.share_where(partial(lateness.in_collective, case)) > 0
