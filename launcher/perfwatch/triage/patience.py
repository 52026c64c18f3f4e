"""How long a wait is given before it is called a hang: by what may end it, by its own deadline, and by who has just moved."""

from collections.abc import Iterable
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.history import once
from perfwatch.triage.moving.motion import MOVED_SECONDS
from perfwatch.triage.moving.progress import steady_steps
from perfwatch.triage.shares.thresholds import BEYOND
from perfwatch.triage.waits.chain import Chain
from perfwatch_probes.readings import Process, ProcessEnded, Thread

DECISIVE_SECONDS = 1.0  # two sightings, one second apart
STRUCTURAL_SECONDS = 6.0
SETTLED_SECONDS = 2.5  # after a thread has run: two looks, of which the second shows what it does then
RESTED_SECONDS = 2.0  # without a run, after which one run is news
COUNTS_TIMES = 5.0  # times the hang timeout, for what comes to its end: a loop that counts, or goes through data
STEADY_SHARE = 1 / 3  # of the session's hang timeout, at least, for a run whose steps were regular for long
STEADY_TIMES = 20.0  # times its longest gap; and the steps were counted for so many times the result


@once
def temporal(case: Case) -> float:
    """The hang timeout of this run, in seconds: the session's, three times the longest gap that it recovered from, or less.

    It is less if all ranks made steps for long and no gap came near it: after 50 ms steps for an hour the next one is overdue soon.
    Then it is 20 times the longest gap, and a third of the session's at least, if steps were counted for 20 times that.
    """
    clocks = [case.steps(rank) for rank in case.ranks]
    longest = max((clock.longest_seconds or 0.0 for clock in clocks if clock is not None), default=0.0)
    timeout = max(case.patience_seconds, BEYOND * longest)
    steady = [steady_steps(case.history, rank.pid) for rank in case.ranks]
    overdue = max(STEADY_SHARE * case.patience_seconds, STEADY_TIMES * max((gap for _, gap in steady), default=0.0))
    counted = min((seconds for seconds, _ in steady), default=0.0)
    return min(timeout, overdue) if counted >= STEADY_TIMES * overdue else timeout


def long_timeout(case: Case) -> float:
    """The hang timeout of what comes to its end and takes its time: a loop that counts, goes through data, or computes."""
    return COUNTS_TIMES * temporal(case)


def settles_in(case: Case, chain: Chain) -> float:
    """Seconds until it is known why the waiting thread, or the end, has run a moment ago after a long rest: it may be on its way."""
    woken = [
        after.at
        for pid, tid in {(node.pid, node.tid) for node in (chain.start, chain.end.node)}
        for before, after in pairwise(case.history.series(Thread, pid, tid, seconds=2 * SETTLED_SECONDS))
        if before.reading.wait is not None and (before.reading.ran_ago_seconds or 0.0) >= RESTED_SECONDS
        if (after.reading.run_seconds or 0.0) > (before.reading.run_seconds or 0.0) + MOVED_SECONDS
    ]
    left = max(woken, default=0.0) + SETTLED_SECONDS - case.at if woken else 0.0
    # Who polls sees it later.
    return max(left, unseen_seconds(case, {chain.start.pid})) if chain.end.node.naps else left


def unseen_seconds(case: Case, pids: Iterable[int]) -> float:
    """Seconds for which ranks have still to be seen waiting: a process of theirs has just ended, and with its result they may continue.

    One that lived for a few seconds only is a helper that comes and goes.
    """
    return max((_unseen_seconds(case, pid) for pid in pids if pid in case.progress), default=0.0)


@once
def ended_of_ranks(case: Case) -> dict[int, list[int]]:
    """By rank, its processes that have ended."""
    found: dict[int, list[int]] = {}
    for member in case.job.members.values():
        if member.rank_pid is not None and not member.alive:
            found.setdefault(member.rank_pid, []).append(member.pid)
    return found


def _unseen_seconds(case: Case, pid: int) -> float:
    own = ended_of_ranks(case).get(pid, ())
    ends = [
        end.at
        for one in own
        if (end := case.history.latest(ProcessEnded, one)) is not None
        and (began := case.history.latest(Process, one)) is not None
        and (began.reading.age_seconds or 0.0) + end.at - began.at >= STRUCTURAL_SECONDS
    ]
    looked = case.history.latest(Thread, pid, case.progress[pid].thread)
    return max(ends) + DECISIVE_SECONDS - looked.at if ends and looked is not None else 0.0
