"""The training thread waits for a process that is gone."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.ends import ended_processes
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, temporal
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit, node_of, silence
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Process, Stack, Thread

CAUSE = Cause("dead_worker", "hung", "user_code", (Process, Thread, Stack))

INFERRED = 0.9
RAISES = "use concurrent.futures.ProcessPoolExecutor: it raises when a worker dies"
GUESSED = 0.7  # the pool is idle, but no worker is known to have died


def judge(case: Case) -> Outcome:
    """Fires on a dead end, or on a pool of idle workers one of which is a replacement."""
    for pid, chain in case.chains.items():
        alone = chain.end.node.pid == pid and not chain.end.detail  # a rank that has ended waits for no other task
        if chain.end.kind != "dead" or alone or case.progress[pid].kind != "still":
            continue
        # Seen to wait since: a look from before the end is of a wait that the end may end.
        if ended_processes.outlived_seconds(case, chain):
            return _gone(case, chain)
    for chain in case.still_chains:
        wait = chain.end.node.wait
        shared = chain.end.kind == "lock" and wait is not None and wait.shared
        if shared and (dead := ended_processes.dead_beside(case, chain)):
            return _orphaned_lock(case, chain, dead)
        if chain.end.kind == "idle" and "pool" in chain.through:
            return _lost_task(case, chain)
    return None


def _gone(case: Case, chain: Chain) -> Outcome:
    """The process that is waited for has ended. Where the waiting one went on now and then, it is given more time."""
    pid = chain.end.node.pid
    how, last = how_it_ended(case.history, pid), show(chain.end.node.frame)
    lost = f"process {pid}{f', last seen at {last},' if last else ''} is gone{f' ({how})' if how else ''}"
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{lost} and {_waiter(chain)} still waits for it",
        patience=DECISIVE_SECONDS if chain in case.still_chains else STRUCTURAL_SECONDS,
        silent=ended_processes.outlived_seconds(case, chain),
        alternatives=(Alternative(cause="stuck_worker", refuted_by=f"process {pid} does not exist any more"),),
        next=(ended_processes.where_to_look(case, pid), RAISES),
    )
    return ended_processes.dated(case, chain, found)


def _lost_task(case: Case, chain: Chain) -> Outcome:
    """Every worker of a pool waits for a task while a result is waited for: it will not come."""
    workers = [node_of(case.history, case.job, pid) for pid in chain.end.others]
    idle_seconds = min((silence(case.history, worker) or 0.0 for worker in workers), default=0.0)
    successor = ended_processes.replaced(case, chain)
    what = "died and was replaced; its task is lost" if successor else "took a task that is in no worker now"
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"a pool worker {what} and {_waiter(chain)} waits for it for ever",
        patience=STRUCTURAL_SECONDS if successor else temporal(case),
        silent=min(idle_seconds, chain.end.silent_seconds or 0.0),
        evidence=(
            *((successor,) if successor else ()),
            case.saw(
                "pool",
                f"pid {chain.start.pid}",
                "every worker waits for its next task",
                f"{len(workers)} workers idle for at least {idle_seconds:.1f} s",
                "one of them is at the task",
            ),
        ),
        ceiling=INFERRED if successor else GUESSED,
        alternatives=(Alternative(cause="stuck_worker", refuted_by="every worker of the pool is idle"),),
        next=("dmesg | grep -i 'killed process'", RAISES),
    )


def _orphaned_lock(case: Case, chain: Chain, dead: tuple[int, ...]) -> Outcome:
    """Whoever lives and shares the lock waits too: one that has ended took it along, or one of its slots, or is missed at a barrier."""
    dead = ended_processes.missed(case, chain, dead)
    how, (lasts, patience) = how_it_ended(case.history, dead[-1]), ended_processes.lasting(case, chain)
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=ended_processes.left_waiting(case, chain, dead),
        patience=patience,
        silent=lasts.seconds,
        evidence=(
            *lasts.evidence,
            case.saw("process", f"pid {dead[-1]}", "is gone", how or "ended, or a zombie", "alive"),
            *ended_processes.words_of(case, dead),
        ),
        ceiling=min(INFERRED, lasts.ceiling),
        alternatives=(
            Alternative(cause="stuck_worker", refuted_by="whoever lives and could let it go on waits itself"),
        ),
        next=(ended_processes.where_to_look(case, dead[-1]), ended_processes.way_out(chain)),
    )
    lost = tuple(culprit(node_of(case.history, case.job, pid)) for pid in dead[-ended_processes.SHOWN :])
    return msgspec.structs.replace(found, culprits=(*lost, *ended_processes.left(chain, found.culprits)))


def _waiter(chain: Chain) -> str:
    rank = f"rank {chain.start.rank}" if chain.start.rank is not None else f"pid {chain.start.pid}"
    return f"the training thread of {rank}"


RULES = (Rule(CAUSE, judge),)
