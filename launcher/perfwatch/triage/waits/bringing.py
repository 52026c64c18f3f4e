"""For whose work a rank waits: a child, a pool, an actor, a lock's owner, or whoever may bring a file that it looks for again and again."""

from itertools import zip_longest

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.working import (
    may_work,
    started_by,
)
from perfwatch.triage.ranks.calls import in_collective
from perfwatch.triage.waits.asking import asks, only_waits
from perfwatch.triage.waits.chain import Chain
from perfwatch_probes.readings import Thread

PATIENT_SECONDS = (
    5.0  # of sleep between two looks for a file: for a lock or a flag of its own job one looks far more often
)
LOOKS_FOR_A_FILE = ("file_lock", "file_poll")


def may_bring(case: Case, chain: Chain) -> tuple[int, ...]:
    """What the rank itself has started, the other ranks that are at something of their own, and who works of what ranks have started."""
    others = [case.chains[pid] for pid in case.chains if pid != chain.start.pid]
    pids = [one.start.pid for one in others if _is_at_its_own(case, one)]
    found = dict.fromkeys((*started_by(case, chain.start.pid), *pids, *_started_at_work(case)))
    return tuple(pid for pid in found if pid != chain.start.pid and not only_waits(case, pid))


def _started_at_work(case: Case) -> tuple[int, ...]:
    """What any of the ranks has started and that works."""
    started = (pid for rank in case.chains for pid in started_by(case, rank))
    return case.history.once("started_at_work", lambda: tuple(pid for pid in started if may_work(case, pid)))


def may_be_answered(case: Case, chain: Chain) -> bool:
    """Whether somebody works who may change what a rank asks for again and again, or write the file that it looks for."""
    looks = chain.end.kind == "file_poll" or asks(case, chain)
    return looks and any(may_work(case, pid) for pid in may_bring(case, chain))


def others_may_hold_it(case: Case, chain: Chain) -> bool:
    """Whether other ranks of the job are somewhere else than at a file: one of them may have made the lock file."""
    return any(one.end.kind not in LOOKS_FOR_A_FILE for pid, one in case.chains.items() if pid != chain.start.pid)


def takes_what_comes(case: Case, chain: Chain) -> bool:
    """Whether a process that has never trained evaluates, or sleeps for long between two looks for a file.

    Another job brings it, when it has one: the next checkpoint, new weights.
    """
    rank = case.job.members[chain.start.pid]
    seen, steps = case.profile(rank), case.progress[rank.pid].steps
    if (steps is not None and steps.count) or seen.seen("backward", "optimizer", "scaler"):
        return False
    looks = case.history.series(Thread, chain.end.node.pid, chain.end.node.tid)
    sleeps = any(
        _to_sleep(one) >= PATIENT_SECONDS and not _woke(one, *after) for one, *after in zip_longest(looks, looks[1:])
    )
    return seen.seen("forward") or sleeps


def _to_sleep(look: Seen[Thread]) -> float:
    wait = look.reading.wait
    return 0.0 if wait is None else wait.remaining_seconds or 0.0


def _woke(look: Seen[Thread], after: Seen[Thread] | None) -> bool:
    """Whether a thread ran before its sleep should have ended: the deadline was read while it was being written."""
    if after is None or after.reading.ran_ago_seconds is None:
        return False
    return look.at < after.at - after.reading.ran_ago_seconds < look.at + _to_sleep(look)


def _is_at_its_own(case: Case, chain: Chain) -> bool:
    """Who waits for a file too, or for the others (in a collective, or where ranks meet), brings nothing; nor does who trains.

    Whatever CPU time that takes: rank 0 looks 300 times a second whether all have come to torch's store.
    """
    waits = chain.end.kind in (*LOOKS_FOR_A_FILE, "rendezvous") or in_collective(case, chain)
    return not waits and case.progress[chain.start.pid].kind != "moving"
