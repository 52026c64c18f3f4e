"""The training thread waits for a child process that does not come back."""

from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import ends_at
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.batches import forked_with_a_lock
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.napping import Rest, at_rest
from perfwatch.triage.waits.node import NATIVE_WAIT, node_of, silence
from perfwatch.triage.waits.pipes import of_its_pipe
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.verdict import Alternative, Link, Outcome
from perfwatch_probes.readings import Process, Thread

CAUSE = Cause("blocked_child", "hung", "user_code", (Process, Thread))

ASKED = frozenset({"child", "join_process", "supervised"})
TALKED_TO = frozenset({"pipe", "socket"})  # to a program of its own; a worker at the other end is ``stuck_worker``
DOZING = 2.0  # times the patience, for children that nap: they may look at something that comes in the end
UNSEEN = ("unknown", NATIVE_WAIT)
GUESSED = 0.7  # so they may; and so may another thread, where one moves, or whatever it is that could not be seen


def judge(case: Case) -> Outcome:
    """Fires on a chain through a child to an end that does not move."""
    for chain in case.still_chains:
        end = chain.end
        child = _child(case, chain)
        if end.kind in ("sleep", "pipe_empty") and ends_at(case, chain.start.pid) is not None:
            continue  # when it comes back is known
        if "child" in chain.through and child is not None and (rests := at_rest(case, chain, child)) is not None:
            return _finding(case, chain, child, DOZING * temporal(case), rests)
        if end.kind in ("dead", "stopped", "traced") or not end.still or wakes_soon(case, end):
            continue
        if child is None or of_its_pipe(case, chain):
            continue
        if not (chain.through & ASKED or (chain.through & TALKED_TO and not _worker(case, child))):
            continue
        certain = outlasts(case, end) or (end.kind in ("lock", "cycle") and end.detail != OTHERS_MOVE)
        return _finding(case, chain, child, STRUCTURAL_SECONDS if certain else temporal(case))
    return None


def _finding(case: Case, chain: Chain, child: Member, patience: float, rests: Rest | None = None) -> Outcome:
    does = rests.does if rests is not None and rests.does else f"waits for {_last(chain).waits_for}"
    name = " ".join(" ".join(child.process.command).split())[:80]
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"the training thread waits for {_between(case, chain, child)}child {child.pid} ({name}), which {does}",
        patience=patience,
        silent=silence(case.history, chain.start) if rests is not None else None,
        evidence=rests.evidence if rests is not None else (),
        ceiling=GUESSED if rests is not None or chain.end.detail == OTHERS_MOVE or chain.end.kind in UNSEEN else 1.0,
        alternatives=(Alternative(cause="dead_worker", refuted_by=f"process {child.pid} is alive"),),
        next=_next(case, chain, child),
    )


def _next(case: Case, chain: Chain, child: Member) -> tuple[str, ...]:
    """Of a child that writes into a pipe which only its waiting parent could empty, the way out is known."""
    last = _last(chain)
    wait = node_of(case.history, case.job, last.pid, last.tid).wait
    if chain.end.kind == "cycle" and wait is not None and wait.kind == "write":
        return ("read the child's output while it runs (communicate()), or send it to a file",)
    looks = f"ps -o pid,stat,wchan:30,args -p {chain.end.node.pid}"
    waits = "subprocess.run" if chain.through & ASKED and not _worker(case, child) else "what waits for it"
    return (looks, *(forked_with_a_lock(case, chain.end) or (f"give {waits} a time limit",)))


def _between(case: Case, chain: Chain, child: Member) -> str:
    """Who waits for the child where that is not the training thread itself: a worker that reads what the child writes."""
    first = next((link.pid for link in chain.links if link.pid != chain.start.pid), child.pid)
    return "" if case.job.branch(first, chain.start.pid) == child else f"pid {first}, and that for "


def _last(chain: Chain) -> Link:
    """The step at the end that matters; of a cycle, the one that closes it."""
    at = (chain.end.node.pid, chain.end.node.tid)
    same = [link for link in chain.links if (link.pid, link.tid) == at]
    return same[-1] if same and chain.end.kind != "cycle" else chain.links[-1]


def _child(case: Case, chain: Chain) -> Member | None:
    """The child on the way; of a cycle, which ends where it began, the one that it passes."""
    pids = [chain.end.node.pid] if chain.end.kind != "cycle" else [link.pid for link in chain.links]
    found = (case.job.branch(pid, chain.start.pid) for pid in pids if pid != chain.start.pid)
    return next((child for child in found if child is not None), None)


def _worker(case: Case, child: Member) -> bool:
    return child.role in ("worker", "pool_worker") or case.job.of_multiprocessing(child)


RULES = (Rule(CAUSE, judge),)
