"""Who wants the CPUs, who gets them, and who burns them: shared by the rules about a crowded machine."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import FAR_APART, motion
from perfwatch.triage.shares.thresholds import MUCH, NOTABLE
from perfwatch_probes import readings as r

WINDOW_SECONDS = 15.0
DELAYED_SHARE = 0.25  # of the training thread's time, runnable but not running
BUSY_PER_CPU = 1.5  # threads of the job that want a CPU, per CPU: more, and one, wait for each other
CROWD_PER_CPU = 3.0  # busy threads for each CPU: so many crowd it whatever others do

# Threads of the job, (pid, tid), that want one of the CPUs of a rank most of the time.
Demand = frozenset[tuple[int, int]]


def delay_share(case: Case, pid: int) -> float | None:
    """Share of the time that a rank's training thread is runnable but not running."""
    tid = case.progress[pid].thread if pid in case.progress else pid
    return motion(case.history, pid, tid, WINDOW_SECONDS).delay_share


def demand(case: Case, rank_pid: int) -> Demand | None:
    """Threads that run or wait for a CPU of a rank's, over all processes that were swept; None when none was.

    Ranks that are bound to CPUs of their own do not crowd each other.
    """
    own = _cpus_of(case, rank_pid)
    return case.history.once(("demand", own), lambda: _demand(case, own))  # the same for all ranks on these CPUs


def _demand(case: Case, own: frozenset[int]) -> Demand | None:
    runs, known = {}, False
    since = case.at - FAR_APART * WINDOW_SECONDS  # of others nothing is known; in a calm job those are nearly all
    for pid, tid in case.history.entities(r.Thread):
        seen = case.history.latest(r.Thread, pid, tid)
        if pid not in case.job.members or seen is None or seen.at < since or _elsewhere(_cpus_of(case, pid), own):
            continue
        moved = motion(case.history, pid, tid, WINDOW_SECONDS)
        known = known or moved.run_share is not None
        if moved.run_share is not None and moved.run_share + (moved.delay_share or 0.0) >= MUCH:
            runs[pid, tid] = moved.run_share
    # One that runs much less than the others is let run as often as it asks, and asks for little. Measured: a queue's feeder thread
    # beside busy workers runs 0.3 % of a core, and waits up to 12 % for it.
    least = NOTABLE * sum(runs.values()) / len(runs) if runs else 0.0
    return frozenset(key for key, run in runs.items() if run >= least) if known else None


def sharers(case: Case, rank_pid: int) -> int:
    """How many ranks may run on the CPUs of one, itself included."""
    own = _cpus_of(case, rank_pid)
    return sum(not _elsewhere(_cpus_of(case, rank.pid), own) for rank in case.ranks)


def _cpus_of(case: Case, pid: int) -> frozenset[int]:
    return case.history.once(("cpus", pid), lambda: _may_run_on(case, pid))


def _may_run_on(case: Case, pid: int) -> frozenset[int]:
    """Where a process may run, or the rank that it belongs to if it was not asked itself; empty where neither is known."""
    member = case.job.members.get(pid)
    seen = case.history.latest(r.Affinity, pid)
    if seen is None and member is not None and member.rank_pid is not None:
        seen = case.history.latest(r.Affinity, member.rank_pid)
    return frozenset(seen.reading.cpus) if seen is not None else frozenset()


def _elsewhere(cpus: frozenset[int], own: frozenset[int]) -> bool:
    return bool(cpus and own) and cpus.isdisjoint(own)


def allowed_cpus(case: Case, pid: int) -> float | None:
    """CPUs that a rank may use: its affinity, or its quota where that is less."""
    seen = case.history.latest(r.Affinity, pid)
    host = case.latest_host()
    cpus = float(len(seen.reading.cpus)) if seen is not None else float(host.reading.cpus_online) if host else None
    quotas = [
        group.reading.quota_cpus
        for key in case.history.entities(r.Cgroup)
        if (group := case.history.latest(r.Cgroup, *key)) and group.reading.quota_cpus
    ]
    return min([cpus, *quotas]) if cpus is not None else None


def own_cores(case: Case, on: frozenset[int] | None = None) -> float:
    """CPU seconds per second of the job's processes that were read; of those that may run nowhere else, if ``on`` says where."""
    return sum(
        case.history.rate(r.ProcessUsage, pid, of=lambda u: u.cpu_seconds, seconds=WINDOW_SECONDS) or 0.0
        for (pid,) in case.history.entities(r.ProcessUsage)
        if pid in case.job.members  # others are read as well, who write into a pipe of the job's
        if on is None or (seen := case.history.latest(r.Affinity, pid)) is None or on.issuperset(seen.reading.cpus)
    )


def watching_cores(case: Case) -> float:
    """CPU seconds per second that our own probes cost."""
    calls = case.history.every(r.ProbeCall, seconds=WINDOW_SECONDS)
    return sum(call.reading.cpu_seconds or 0.0 for call in calls) / max(1.0, min(WINDOW_SECONDS, case.at))


def burnt_by_others(case: Case, pid: int) -> float | None:
    """Of what is computed on the CPUs that a rank may use, the share that is neither the job's own nor ours; None: not known."""
    busy = _busy_cores(case, pid)
    if busy is None or busy <= 0:
        return None
    return max(0.0, 1.0 - (own_cores(case, confined(case, pid)) + watching_cores(case)) / busy)


def taken_by_others(case: Case, pid: int) -> float:
    """Of the CPUs that a rank may use, the share that others take, on this machine or below it; 0 where it is not known.

    Who shares a core's units, its clock, the caches and the memory with others is slower, and waits for no CPU.
    """
    others, busy, cpus = burnt_by_others(case, pid), _busy_cores(case, pid), allowed_cpus(case, pid)
    burnt = others * busy / cpus if others is not None and busy is not None and cpus else 0.0
    return burnt + (steal_share(case) or 0.0)


def _busy_cores(case: Case, pid: int) -> float | None:
    """CPU seconds per second of everybody, on the CPUs that a rank may use."""
    if confined(case, pid) is None:
        return case.history.rate(r.Host, of=lambda h: h.user_seconds + h.system_seconds, seconds=WINDOW_SECONDS)
    return case.history.rate(r.Affinity, pid, of=lambda a: a.busy_seconds, seconds=WINDOW_SECONDS)


def spare_cores(case: Case, pid: int) -> float | None:
    """CPUs of the machine that nobody uses; None where it is not known, or where a rank may use only some of them."""
    cpus, host = allowed_cpus(case, pid), case.latest_host()
    if cpus is None or host is None or cpus < host.reading.cpus_online:
        return None
    return case.history.rate(r.Host, of=lambda h: h.idle_seconds, seconds=WINDOW_SECONDS)


def confined(case: Case, pid: int) -> frozenset[int] | None:
    """The CPUs of a rank that may use only some of the machine's, where it is known what is computed on these; else None."""
    seen = case.history.latest(r.Affinity, pid)
    return frozenset(seen.reading.cpus) if seen is not None and seen.reading.busy_seconds is not None else None


def steal_share(case: Case) -> float | None:
    """Share of the machine's CPU time that the hypervisor gave to others."""
    stolen = case.history.rate(r.Host, of=lambda h: h.steal_seconds, seconds=WINDOW_SECONDS)
    host = case.latest_host()
    return stolen / host.reading.cpus_online if stolen is not None and host is not None else None
