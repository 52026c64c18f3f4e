"""The control group's CPU quota stops the job for a part of every period."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.slowness import certainty, noted, slow, working
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Cgroup

CAUSE = Cause("throttled_cpu", "slow", "node", (Cgroup,))

THROTTLED_SHARE = 0.15  # of the periods
WINDOW_SECONDS = 20.0


def judge(case: Case) -> Outcome:
    """Fires when the group is throttled in a good share of its periods, and that costs time."""
    for rank, _ in working(case):
        for (path,) in case.history.entities(Cgroup):
            periods = case.history.growth(Cgroup, path, of=lambda g: g.periods, seconds=WINDOW_SECONDS)
            throttled = case.history.growth(Cgroup, path, of=lambda g: g.throttled_periods, seconds=WINDOW_SECONDS)
            stopped = case.history.rate(Cgroup, path, of=lambda g: g.throttled_seconds, seconds=WINDOW_SECONDS)
            if not periods or not throttled or periods[0] <= 0 or throttled[0] / periods[0] < THROTTLED_SHARE:
                continue
            latest = case.history.latest(Cgroup, path)
            quota = latest.reading.quota_cpus if latest else None
            share = throttled[0] / periods[0]
            lost = _lost(case, rank, share, stopped)
            return slow(
                case,
                CAUSE,
                rank,
                lost=lost or 0.0,
                confidence=noted(lost, max(0.85, certainty(lost or 0.0))),
                summary=f"the CPU quota{f' of {quota:g} CPUs' if quota else ''} stops the job in {share:.0%} of its periods",
                evidence=(
                    case.saw(
                        "cgroup",
                        path,
                        "throttled",
                        f"{throttled[0]:.0f} of {periods[0]:.0f} periods, {stopped or 0:.2f} s per second over all threads",
                        "0 periods",
                    ),
                ),
                culprits=(),
                alternatives=(Alternative(cause="contended_cpu", refuted_by="the group itself is throttled"),),
                next=("raise the container's CPU limit (cpu.max), or use fewer threads and workers",),
            )
    return None


def _lost(case: Case, rank: Member, share: float, stopped: float | None) -> float | None:
    """The most of the time that the quota can have cost; None where neither the kernel nor a thread tells how long it lasted.

    What is counted is summed over all CPUs of the group: a thread that stands still for it is runnable, and waits for a CPU.
    """
    threads = [(rank.pid, case.progress[rank.pid].thread)]
    threads += [(worker.pid, worker.pid) for worker in case.job.workers(rank.pid) if worker.alive]
    delays = (motion(case.history, *thread, WINDOW_SECONDS).delay_share for thread in threads)
    known = [delay for delay in delays if delay is not None]
    longest = [one for one in (stopped, max(known, default=None)) if one is not None]
    return min(share, *longest) if longest else None


RULES = (Rule(CAUSE, judge),)
