"""The job has far more busy threads than CPUs on which it may run."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import (
    BUSY_PER_CPU,
    CROWD_PER_CPU,
    DELAYED_SHARE,
    Demand,
    allowed_cpus,
    burnt_by_others,
    confined,
    demand,
    sharers,
)
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.slowness import certainty, slow, working
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Thread

CAUSE = Cause("oversubscribed_threads", "slow", "user_code", (Thread,))

# Of what is burnt on CPUs of its own: below it nobody else can have crowded them, and one thread too many will do.
ALONE_SHARE = 0.3
OTHERS_SHARE = 0.5  # of the burnt CPU time: above it the neighbours are to blame, unless the job alone is a crowd
# Confidence where more than ALONE_SHARE is theirs, or where it is the loader's workers, one thread each, that make it a crowd:
# then there may just be too much to do for these CPUs, whoever does it.
TOO_MUCH_WORK = 0.79
MOST_NAMED = 4


def judge(case: Case) -> Outcome:
    """Fires when the job's own threads crowd its CPUs."""
    for rank, _ in working(case):
        if case.progress[rank.pid].kind != "moving":
            continue
        cpus, wanted = allowed_cpus(case, rank.pid), demand(case, rank.pid)
        if cpus is None or wanted is None:
            continue
        late = starving(case)
        threads = len(wanted.wanting.difference(late.producers if late is not None else ()))
        others = burnt_by_others(case, rank.pid)
        alone = confined(case, rank.pid) is not None and others is not None and others < ALONE_SHARE
        crowd = BUSY_PER_CPU * cpus + 1
        least = cpus + 1 if alone and late is None else crowd
        if threads < least or wanted.delay_share(rank.pid, case) < DELAYED_SHARE:
            continue
        if others is not None and others > OTHERS_SHARE and threads < CROWD_PER_CPU * cpus:
            continue
        delay, beside = wanted.delay_share(rank.pid, case), _beside(case, rank, wanted)
        own = 2 * len(beside) > wanted.threads
        where = f", {len(beside)} of them the program's own, mostly at {show(beside[0].frame)}" if own else ""
        return slow(
            case,
            CAUSE,
            rank,
            lost=delay,
            confidence=min(max(0.8, certainty(delay)), _ceiling(case, rank, wanted, others, cpus)),
            culprits=tuple(map(culprit, beside[:MOST_NAMED])) if own else None,
            summary=f"{wanted.threads} threads of the job want to run on {cpus:.0f} CPUs{where}; "
            f"the training thread waits for a CPU {delay:.0%} of the time",
            evidence=_evidence(case, rank, wanted, cpus),
            alternatives=(Alternative(cause="contended_cpu", refuted_by="the CPU time is burnt by the job itself"),),
            next=("let fewer of these threads compute at once, or give the job more CPUs",)
            if own
            else (
                f"OMP_NUM_THREADS={max(1, int(cpus // max(1, sharers(case, rank.pid))))}",
                "torch.set_num_threads(1) in workers; fewer workers, or more CPUs for the job",
            ),
        )
    return None


def _evidence(case: Case, rank: Member, wanted: Demand, cpus: float) -> tuple[Evidence, ...]:
    most, delay = f"at most {cpus:.0f}", wanted.delay_share(rank.pid, case)
    busy = f"{wanted.threads} busy threads, {cpus:.0f} CPUs allowed"
    waits = f"{delay:.0%} of the time runnable but not running"
    return (
        case.saw("thread", "the job", "more busy threads than CPUs", busy, most),
        case.saw("schedstat", f"pid {rank.pid}", "waits for a CPU", waits, "below 5 %"),
    )


def _beside(case: Case, rank: Member, wanted: Demand) -> list[Node]:
    """The threads that the program has started itself beside its training thread, and that want a CPU: those at lines of its own."""
    tids = (tid for tid in python_threads(case.history, rank.pid) if tid != case.progress[rank.pid].thread)
    nodes = (node_of(case.history, case.job, rank.pid, tid) for tid in tids if (rank.pid, tid) in wanted.wanting)
    return [node for node in nodes if node.frame is not None]


def _ceiling(case: Case, rank: Member, wanted: Demand, others: float | None, cpus: float) -> float:
    """How sure the number of threads can be what is wrong."""
    shared = others is not None and others >= ALONE_SHARE and wanted.threads < CROWD_PER_CPU * cpus
    workers = {(worker.pid, worker.pid) for worker in case.job.workers(rank.pid)}
    needed = len(wanted.wanting - workers) < BUSY_PER_CPU * cpus + 1 and not workers.isdisjoint(wanted.wanting)
    return TOO_MUCH_WORK if shared or needed else 1.0


RULES = (Rule(CAUSE, judge),)
