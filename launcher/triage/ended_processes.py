"""Processes that have ended while somebody waits for what they would have brought: since when, which of them, and who replaced one."""

from perfwatch.probes.readings import ProcessEnded
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.job import youngest_start_gap_seconds
from perfwatch.triage.threads import BEFORE_SECONDS
from perfwatch.triage.verdict import Evidence
from perfwatch.triage.workers import pool_members

REPLACED_SECONDS = 0.5  # workers of one pool start within milliseconds of each other


def outlived_seconds(case: Case, chain: Chain) -> float:
    """How long the waiting thread has been seen to wait since the process was known to be gone: a parent that reaps wakes at once."""
    gone = case.history.latest(ProcessEnded, chain.end.node.pid)
    known = gone.at if gone is not None else chain.start.thread_at - (chain.end.silent_seconds or 0.0)
    return max(0.0, chain.start.thread_at - known)


def dead_beside(case: Case, chain: Chain) -> tuple[int, ...]:
    """Python processes of this rank that ended not long before the wait began: one of them may have held the lock.

    Not a DataLoader's workers: torch raises where one dies, and lets them go where an epoch ends.
    """
    began = case.at - (chain.end.silent_seconds or 0.0)
    ends = {key[0]: case.history.series(ProcessEnded, *key)[0].at for key in case.history.entities(ProcessEnded)}
    return tuple(
        m.pid
        for m in case.job.members.values()
        if not m.alive and m.process.python and m.role != "worker" and m.rank_pid == chain.start.rank_pid
        if ends.get(m.pid, began) >= began - BEFORE_SECONDS
    )


def replaced(case: Case, chain: Chain) -> Evidence | None:
    """A pool worker that is much younger than its siblings: it stands in for one that died."""
    members = pool_members(case.job, chain.end.node)
    gap = youngest_start_gap_seconds(m for m in members if m.alive)
    dead = [m for m in members if not m.alive]
    if gap < REPLACED_SECONDS and not dead:
        return None
    youngest = max(members, key=lambda m: m.process.start_ticks)
    return case.saw(
        "process",
        f"pid {youngest.pid}",
        "replaces a worker that died",
        f"started {gap:.1f} s after its siblings",
        "all workers of a pool start together",
    )
