"""The control group's CPU quota stops the job for a part of every period.

What it means
    The container or Slurm job has a CPU limit below what it wants to use; the kernel parks all its threads until the next period.

How it is recognised
    ``nr_throttled`` and the throttled time of the job's group grow, in a good share of the periods.

What it is mistaken for
    ``contended_cpu``: run delay without throttling. A quota that is never reached: nothing is throttled.

What to do next
    Raise the CPU limit, or use fewer threads and workers.
"""

from perfwatch.probes.readings import Cgroup
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import certainty, slow, working
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("throttled_cpu", "slow", "node", (Cgroup,))

THROTTLED_SHARE = 0.15  # of the periods
WINDOW_SECONDS = 20.0


def judge(case: Case) -> Outcome:
    """Fires when the group is throttled in a good share of its periods."""
    for rank, _ in working(case):
        for (path,) in case.history.entities(Cgroup):
            periods = case.history.growth(Cgroup, path, of=lambda g: g.periods, seconds=WINDOW_SECONDS)
            throttled = case.history.growth(Cgroup, path, of=lambda g: g.throttled_periods, seconds=WINDOW_SECONDS)
            lost_time = case.history.rate(Cgroup, path, of=lambda g: g.throttled_seconds, seconds=WINDOW_SECONDS)
            if not periods or not throttled or periods[0] <= 0 or throttled[0] / periods[0] < THROTTLED_SHARE:
                continue
            latest = case.history.latest(Cgroup, path)
            quota = latest.reading.quota_cpus if latest else None
            share = throttled[0] / periods[0]
            return slow(
                case,
                CAUSE,
                rank,
                lost=share,
                confidence=max(0.85, certainty(share)),
                summary=f"the CPU quota{f' of {quota:.2g} CPUs' if quota else ''} stops the job in {share:.0%} of its periods",
                evidence=(
                    case.saw(
                        "cgroup",
                        path,
                        "throttled",
                        f"{throttled[0]:.0f} of {periods[0]:.0f} periods, {lost_time or 0:.2f} s per second over all threads",
                        "0 periods",
                    ),
                ),
                culprits=(),
                alternatives=(Alternative(cause="contended_cpu", refuted_by="the group itself is throttled"),),
                next=("raise the container's CPU limit (cpu.max), or use fewer threads and workers",),
            )
    return None
