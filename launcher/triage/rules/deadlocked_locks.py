"""Threads wait for locks that nobody will release.

What it means
    Two threads hold what the other one wants, a condition is never notified, or a lock was never released. It will not heal.

How it is recognised
    The wait chain ends in a futex without a timeout, and every other Python thread of the process that could release it waits
    in the same way (or there is none): a cycle, or a lock without an owner.

What it is mistaken for
    A wait for a worker, child or peer that itself moves: the chain is followed first. A lock whose owner works: that thread
    moves, and the chain leads to it. ``held_gil``: waiters for the GIL wake 200 times a second.

What to do next
    The frames of both threads name the two locks: take them in one order, or give ``acquire`` a timeout.
"""

import msgspec

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.frames import show
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, temporal, who
from perfwatch.triage.motion import motion
from perfwatch.triage.node import culprit, node_of
from perfwatch.triage.rule import Cause
from perfwatch.triage.threads import OTHERS_MOVE
from perfwatch.triage.verdict import Abstention, Alternative, Evidence, Finding, Missing, Outcome

CAUSE = Cause("deadlocked_locks", "hung", "user_code", (Thread, Stack))

ELSEWHERE = frozenset({"loader", "pool", "gil"})  # chains that have a rule of their own
CEILING_OTHERS_MOVE = 0.75
WORKING_SHARE = 0.2  # of a core


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a lock or a cycle of locks."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind not in ("lock", "cycle") or chain.through & ELSEWHERE or not end.still:
            continue
        if end.node.stack is None:
            lacking = case.lacks("stacks") or Missing(
                witness="stacks", reason=f"no stack of pid {end.node.pid} was read"
            )
            return Abstention(cause=CAUSE.name, missing=(lacking,))
        if len(case.ranks) > 1 and "collective" in end.node.tags | chain.start.tags:
            continue
        if end.detail != OTHERS_MOVE or not _somebody_works(case, chain):
            return _finding(case, chain)
    return None


def _somebody_works(case: Case, chain: Chain) -> bool:
    """Whether another thread of the process burns CPU: it may hold the lock, or make what is waited for."""
    pid = chain.end.node.pid
    keys = [key for key in case.history.entities(Thread) if key[0] == pid and key[1] != chain.end.node.tid]
    shares = (motion(case.history, *key).run_share for key in keys)
    return any(share is not None and share > WORKING_SHARE for share in shares)


def _finding(case: Case, chain: Chain) -> Finding:
    end = chain.end
    partners = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others]
    moving = end.detail == OTHERS_MOVE
    evidence: tuple[Evidence, ...] = tuple(
        case.saw(
            "thread",
            f"pid {p.pid} thread {p.tid}",
            f"waits too, at {show(p.frame)}",
            f"{p.wait.call if p.wait else '?'} without a timeout",
            "one of them runs",
        )
        for p in partners[:4]
        if not moving
    )
    with_whom = " and ".join(f"thread {p.name or p.tid} at {show(p.frame)}" for p in partners[:3] if not moving)
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} waits for a lock for ever"
        + (f"; so does {with_whom}" if with_whom else "; no thread is left that would release it"),
        patience=temporal(case) if moving else STRUCTURAL_SECONDS,
        evidence=evidence,
        ceiling=CEILING_OTHERS_MOVE if moving else 1.0,
        alternatives=(Alternative(cause="endless_python", refuted_by="the thread does not run"),),
        next=(f"py-spy dump --nonblocking --locals --pid {end.node.pid}",),
    )
    culprits = (culprit(end.node), *(culprit(p) for p in partners if not moving))
    return msgspec.structs.replace(found, culprits=culprits)
