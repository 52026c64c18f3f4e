"""The training thread waits for a child process that does not come back.

What it means
    A ``subprocess.run``, ``communicate`` or ``join`` waits for a program that itself is stuck: the child is to blame.

How it is recognised
    The wait chain passes from the training thread to a child and ends there, in something that does not move, or comes back
    to the training thread: the child writes into a pipe that only its parent, which waits for its end, could read.

What it is mistaken for
    A child that works (it burns CPU or does io): busy. A dead child: ``dead_worker``. A child blocked on a file, a peer or a
    pipe is still a blocked child: what it waits for stands in the chain.

What to do next
    Look at the child; give ``subprocess.run`` a timeout.
"""

from perfwatch.probes.readings import Process, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, outlasts, temporal, wakes_soon
from perfwatch.triage.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.threads import OTHERS_MOVE
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("blocked_child", "hung", "user_code", (Process, Thread))

ASKED = frozenset({"child", "join_process", "supervised"})
TALKED_TO = frozenset({"pipe", "socket"})  # to a program of its own; a worker at the other end is ``stuck_worker``


def judge(case: Case) -> Outcome:
    """Fires on a chain through a child to an end that does not move."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind in ("dead", "stopped", "traced") or not end.still or wakes_soon(case, end):
            continue
        child = _child(case, chain)
        if child is None or not (chain.through & ASKED or (chain.through & TALKED_TO and not _worker(case, child))):
            continue
        name = " ".join(child.process.command)[:80]
        certain = outlasts(case, end) or (end.kind in ("lock", "cycle") and end.detail != OTHERS_MOVE)
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"the training thread waits for child {child.pid} ({name}), which waits for {chain.links[-1].waits_for}",
            patience=STRUCTURAL_SECONDS if certain else temporal(case),
            alternatives=(Alternative(cause="dead_worker", refuted_by=f"process {child.pid} is alive"),),
            next=(f"ps -o pid,stat,wchan:30,args -p {end.node.pid}", "give subprocess.run a timeout"),
        )
    return None


def _child(case: Case, chain: Chain) -> Member | None:
    """The child on the way; of a cycle, which ends where it began, the one that it passes."""
    pids = [chain.end.node.pid] if chain.end.kind != "cycle" else [link.pid for link in chain.links]
    found = (case.job.branch(pid, chain.start.pid) for pid in pids if pid != chain.start.pid)
    return next((child for child in found if child is not None), None)


def _worker(case: Case, child: Member) -> bool:
    return child.role in ("worker", "pool_worker") or case.job.of_multiprocessing(child)
