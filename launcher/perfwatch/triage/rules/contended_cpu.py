"""Other processes use the CPUs that the job needs."""

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import allowed_cpus, burnt_by_others, confined, delay_share, demand, steal_share
from perfwatch.triage.slowness import certainty, slow, working
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Host, Thread

CAUSE = Cause("contended_cpu", "slow", "node", (Thread, Host))

DELAYED_SHARE = 0.25  # one neighbour at nice 4 on the job's core costs 0.29; a quiet machine 0.01 to 0.05
STRETCH = 0.5  # a crowded machine stretches every other cause alike: one that explains half as much is named instead
HIDES = 0.79  # ... and hides it: confidence that nothing else is slow is never quite sure
STEAL_SHARE = 0.25  # a shared host takes 0.1 to 0.2 now and then, and the job goes on as fast as ever there
OTHERS_SHARE = 0.3  # of the burnt CPU time
# ... of CPUs that the job is confined to and does not fill by itself: so only others can delay it. That neighbour burns 0.29 of
# a single one; what we burn ourselves is taken off wherever we run (0.07 to 0.17), and cannot make the delay alone.
OTHERS_THERE = 0.1


def judge(case: Case) -> Outcome:
    """Fires when the training thread waits for a CPU that others burn."""
    for rank, _ in sorted(working(case), key=lambda one: -(delay_share(case, one[0].pid) or 0.0)):
        if case.progress[rank.pid].kind != "moving":
            continue
        delay, others, steal = delay_share(case, rank.pid), burnt_by_others(case, rank.pid), steal_share(case)
        stolen = steal is not None and steal >= STEAL_SHARE
        if delay is None or not (delay >= DELAYED_SHARE or stolen):
            continue
        wanted, cpus, own = demand(case, rank.pid), allowed_cpus(case, rank.pid), confined(case, rank.pid)
        crowd = wanted.threads if wanted else 0
        least = OTHERS_THERE if own is not None and 0 < crowd <= len(own) else OTHERS_SHARE
        if not stolen and (others is None or others < least):
            continue
        if not stolen and cpus is not None and crowd > 2 * cpus + 1:
            continue
        lost = max(delay, steal or 0.0)
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            explains=STRETCH * lost,
            summary=f"the training thread waits for a CPU {delay:.0%} of the time while others burn {others or 0:.0%} of the CPU time used"
            + (f" and {steal:.0%} is stolen by the hypervisor" if stolen else ""),
            confidence=min(HIDES, certainty(lost)),
            evidence=(
                case.saw(
                    "schedstat",
                    f"pid {rank.pid}",
                    "waits for a CPU",
                    f"{delay:.0%} of the time runnable but not running",
                    "below 5 %",
                ),
                case.saw(
                    "host",
                    "host" if own is None else f"the {len(own)} CPUs of pid {rank.pid}",
                    "burnt outside the job",
                    f"{others or 0:.0%} of the CPU time used, steal {steal or 0:.0%}",
                    f"below {least:.0%}",
                ),
            ),
            culprits=(),
            alternatives=(
                Alternative(cause="oversubscribed_threads", refuted_by=f"only {crowd} threads of the job want to run"),
            ),
            next=("top -o %CPU", "taskset -cp CPUS PID gives the job CPUs of its own"),
        )
    return None


RULES = (Rule(CAUSE, judge),)
