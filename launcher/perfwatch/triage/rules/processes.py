"""Processes that a rank waits for and that do not go on: stopped, gone, or a child that makes no progress."""

from itertools import pairwise, takewhile

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.ends import ended_processes
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.graph.decide import ends_at
from perfwatch.triage.hang import hung, who
from perfwatch.triage.history import Seen
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.groups import unanswered
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.pipes import ASKED, not_read
from perfwatch.triage.rules.workers import forked_with_a_lock
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.napping import Rest, at_rest
from perfwatch.triage.waits.node import NATIVE_WAIT, culprit, node_of, silence
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Finding, Link, Outcome, doing
from perfwatch_probes.readings import Cgroup, Process, ProcessUsage, Stack, Thread

STOPPED = Cause("stopped", "hung", "user_code", (Thread,))
RATIONED_SECONDS = 5.0  # of one that was let go on before: the pauses of a ration are far shorter

DEAD_WORKER = Cause("dead_worker", "hung", "user_code", (Process, Thread, Stack))
INFERRED = 0.9
RAISES = "use concurrent.futures.ProcessPoolExecutor: it raises when a worker dies"
UNSEEN_DEATH = 0.7  # the pool is idle, but no worker is known to have died

BLOCKED_CHILD = Cause("blocked_child", "hung", "user_code", (Process, Thread))
TALKED_TO = frozenset({"pipe", "socket"})  # to a program of its own; a worker at the other end is ``stuck_worker``
DOZING = 2.0  # times the patience, for children that nap: they may look at something that comes in the end
UNSEEN = ("unknown", NATIVE_WAIT)
GUESSED = 0.7  # so they may; and so may another thread, where one moves, or whatever it is that could not be seen


# Stopped


def stopped(case: Case) -> Outcome:
    """Fires on a chain that ends in a stopped or traced thread, or in a frozen group."""
    for chain in case.chains.values():
        if chain.end.kind in ("stopped", "traced") and (found := _stopped(case, chain)) is not None:
            return found
    frozen = [
        seen
        for key in case.history.entities(Cgroup)
        if (seen := case.history.latest(Cgroup, *key)) and seen.reading.frozen
    ]
    for chain in case.chains.values() if frozen else ():
        return hung(
            case,
            STOPPED,
            chain,
            owner="scheduler",
            summary=f"the control group {frozen[0].reading.path} is frozen",
            patience=DECISIVE_SECONDS,
            evidence=(
                case.saw("cgroup", frozen[0].reading.path, "the freezer is on", "FROZEN", "THAWED", frozen[0].at),
            ),
            next=("thaw the group, or ask the scheduler why it froze it",),
        )
    return None


def _is_stopped(look: Seen[Thread]) -> bool:
    return look.reading.state in ("T", "t")


def _ran(earlier: Thread, later: Thread) -> bool:
    """Whether a thread that was stopped at two looks was let go on in between: who is stopped does not run."""
    return (earlier.run_seconds, earlier.voluntary_switches) != (later.run_seconds, later.voluntary_switches)


def _stopped(case: Case, chain: Chain) -> Finding | None:
    node = chain.end.node
    stopped_at = list(takewhile(_is_stopped, reversed(case.history.series(Thread, node.pid, node.tid))))
    again = next(
        (n for n, (later, one) in enumerate(pairwise(stopped_at), 1) if _ran(one.reading, later.reading)), None
    )
    looks = stopped_at[:again]
    usage = case.history.latest(ProcessUsage, node.pid)
    tracer = usage.reading.tracer_pid if usage else 0
    seen_for = case.at - looks[-1].at if looks else 0.0
    if again is not None and max(seen_for, node.motion.ran_ago_seconds or 0.0) < RATIONED_SECONDS:
        return None
    by = f" by process {tracer}" if tracer else ""
    return hung(
        case,
        STOPPED,
        chain,
        summary=f"{who(chain)} is {'traced' if node.state == 't' or tracer else 'stopped'}{by} (state {node.state})",
        patience=DECISIVE_SECONDS,
        silent=max(seen_for, node.motion.ran_ago_seconds or 0.0),  # it ran until it was stopped, in one line or in many
        evidence=(
            case.saw(
                "state",
                f"pid {node.pid}",
                "is stopped",
                f"state {node.state} in {len(looks)} samples, TracerPid {tracer}",
                "R or S",
            ),
            *unanswered(case),
        ),
        next=(f"kill -CONT {node.pid}" if not tracer else f"ps -o pid,user,args -p {tracer}",),
    )


# Gone


def dead_worker(case: Case) -> Outcome:
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
        DEAD_WORKER,
        chain,
        summary=f"{lost} and {_waiter(chain)} still waits for it",
        patience=DECISIVE_SECONDS if chain in case.still_chains else STRUCTURAL_SECONDS,
        silent=ended_processes.outlived_seconds(case, chain),
        but={"stuck_worker": f"process {pid} does not exist any more"},
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
        DEAD_WORKER,
        chain,
        summary=f"a pool worker {what} and {_waiter(chain)} waits for it with no timeout",
        patience=STRUCTURAL_SECONDS if successor else temporal(case),
        silent=min(idle_seconds, chain.end.silent_seconds or 0.0),
        evidence=(
            *((successor,) if successor else ()),
            case.saw(
                "pool",
                f"pid {chain.start.pid}",
                "every worker waits for its next task",
                f"{len(workers)} workers idle for at least {duration(idle_seconds)}",
                "one of them is at the task",
            ),
        ),
        ceiling=INFERRED if successor else UNSEEN_DEATH,
        but={"stuck_worker": "every worker of the pool is idle"},
        next=("dmesg | grep -i 'killed process'", RAISES),
    )


def _orphaned_lock(case: Case, chain: Chain, dead: tuple[int, ...]) -> Outcome:
    """All that live and share the lock wait too: one that has ended took it along, or one of its slots, or is missed at a barrier."""
    dead = ended_processes.missed(case, chain, dead)
    how, (lasts, patience) = how_it_ended(case.history, dead[-1]), ended_processes.lasting(case, chain)
    lost = [culprit(node_of(case.history, case.job, pid)) for pid in dead[-ended_processes.SHOWN :]]
    return hung(
        case,
        DEAD_WORKER,
        chain,
        summary=ended_processes.left_waiting(case, chain, dead),
        patience=patience,
        silent=lasts.seconds,
        evidence=(
            *lasts.evidence,
            case.saw("process", f"pid {dead[-1]}", "is gone", how or "ended, or a zombie", "alive"),
            *ended_processes.words_of(case, dead),
        ),
        ceiling=min(INFERRED, lasts.ceiling),
        but={"stuck_worker": "every living process that could unblock it is blocked itself"},
        next=(ended_processes.where_to_look(case, dead[-1]), ended_processes.way_out(chain)),
        culprits=(*lost, *ended_processes.left(chain, chain.culprits())),
    )


def _waiter(chain: Chain) -> str:
    rank = f"rank {chain.start.rank}" if chain.start.rank is not None else f"pid {chain.start.pid}"
    return f"the training thread of {rank}"


# A child


def blocked_child(case: Case) -> Outcome:
    """Fires on a chain through a child to an end that does not move."""
    for chain in case.still_chains:
        end = chain.end
        child = _child(case, chain)
        if end.kind in ("sleep", "pipe_empty") and ends_at(case, chain.start.pid) is not None:
            continue  # when it comes back is known
        if "child" in chain.through and child is not None and (rests := at_rest(case, chain, child)) is not None:
            return _blocked_child(case, chain, child, DOZING * temporal(case), rests)
        if end.kind in ("dead", "stopped", "traced") or not end.still or wakes_soon(case, end):
            continue
        if child is None or not_read(case, chain) is not None:
            continue
        if not (chain.through & ASKED or (chain.through & TALKED_TO and not _worker(case, child))):
            continue
        certain = outlasts(case, end) or (end.kind in ("lock", "cycle") and end.detail != OTHERS_MOVE)
        return _blocked_child(case, chain, child, STRUCTURAL_SECONDS if certain else temporal(case))
    return None


def _blocked_child(case: Case, chain: Chain, child: Member, patience: float, rests: Rest | None = None) -> Outcome:
    does = rests.does if rests is not None and rests.does else doing(_last(chain).waits_for)
    name = " ".join(" ".join(child.process.command).split())[:80]
    return hung(
        case,
        BLOCKED_CHILD,
        chain,
        summary=f"the training thread waits for {_between(case, chain, child)}child {child.pid} ({name}), which {does}",
        patience=patience,
        silent=silence(case.history, chain.start) if rests is not None else None,
        evidence=rests.evidence if rests is not None else (),
        ceiling=GUESSED if rests is not None or chain.end.detail == OTHERS_MOVE or chain.end.kind in UNSEEN else 1.0,
        but={"dead_worker": f"process {child.pid} is alive"},
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


RULES = (
    Rule(STOPPED, stopped),
    Rule(DEAD_WORKER, dead_worker),
    Rule(BLOCKED_CHILD, blocked_child),
)
