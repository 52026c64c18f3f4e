"""What the machine takes from the job: CPU time by a quota, by other processes or by too many threads of its own; memory; /dev/shm."""

from dataclasses import replace
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen, once
from perfwatch.triage.moving.motion import FAR_APART, motion
from perfwatch.triage.moving.progress import besides_training
from perfwatch.triage.ranks.groups import FEW
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.budget import Bin, budget
from perfwatch.triage.shares.data import UPDATES, starving
from perfwatch.triage.shares.thresholds import (
    LOST_SHARE,
    MINUTE_SECONDS,
    MOSTLY,
    MUCH,
    NEARLY_ALL,
    NOTABLE,
    NOW_SECONDS,
    OFTEN,
)
from perfwatch.triage.slowness import (
    FEW_SAMPLES,
    RESIDUE,
    WINDOW_SECONDS,
    behind,
    certainty,
    noted,
    slow,
    working,
)
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence, Level, Outcome
from perfwatch_probes import readings as r

THROTTLED_CPU = Cause("throttled_cpu", "slow", "node", (r.Cgroup,))
MEMORY_PRESSURE = Cause("memory_pressure", "slow", "node", (r.ProcessUsage,))
SHARED_MEMORY_EXHAUSTED = Cause("shared_memory_exhausted", "slow", "node", (r.Host,))
OVERSUBSCRIBED_THREADS = Cause("oversubscribed_threads", "slow", "user_code", (r.Thread,))
CONTENDED_CPU = Cause("contended_cpu", "slow", "node", (r.Thread, r.Host))

# Who wants the CPUs, who gets them, and who burns them

CPU_SECONDS = 15.0
DELAYED_SHARE = 0.25  # of the training thread's time, runnable but not running
BUSY_PER_CPU = 1.5  # threads of the job that want a CPU, per CPU: more, and one, wait for each other
CROWD_PER_CPU = 3.0  # busy threads for each CPU: so many crowd it whatever others do

# Threads of the job, (pid, tid), that want one of the CPUs of a rank most of the time.
Demand = frozenset[tuple[int, int]]


def delay_share(case: Case, pid: int) -> float | None:
    """Share of the time that a rank's training thread is runnable but not running."""
    tid = case.progress[pid].thread if pid in case.progress else pid
    return motion(case.history, pid, tid, CPU_SECONDS).delay_share


def demand(case: Case, rank_pid: int) -> Demand | None:
    """Threads that run or wait for a CPU of a rank's, over all processes that were swept; None when none was.

    Ranks that are bound to CPUs of their own do not crowd each other.
    """
    own = _cpus_of(case, rank_pid)
    return case.history.once(("demand", own), lambda: _demand(case, own))  # the same for all ranks on these CPUs


def _demand(case: Case, own: frozenset[int]) -> Demand | None:
    runs, known = {}, False
    since = case.at - FAR_APART * CPU_SECONDS  # of others nothing is known; in a calm job those are nearly all
    for pid, tid in case.history.entities(r.Thread):
        seen = case.history.latest(r.Thread, pid, tid)
        if pid not in case.job.members or seen is None or seen.at < since or _elsewhere(_cpus_of(case, pid), own):
            continue
        moved = motion(case.history, pid, tid, CPU_SECONDS)
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


@once
def _cpus_of(case: Case, pid: int) -> frozenset[int]:
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
        case.history.rate(r.ProcessUsage, pid, of=lambda u: u.cpu_seconds, seconds=CPU_SECONDS) or 0.0
        for (pid,) in case.history.entities(r.ProcessUsage)
        if pid in case.job.members  # others are read as well, who write into a pipe of the job's
        if on is None or (seen := case.history.latest(r.Affinity, pid)) is None or on.issuperset(seen.reading.cpus)
    )


def watching_cores(case: Case) -> float:
    """CPU seconds per second that our own probes cost."""
    calls = case.history.every(r.ProbeCall, seconds=CPU_SECONDS)
    return sum(call.reading.cpu_seconds or 0.0 for call in calls) / max(1.0, min(CPU_SECONDS, case.at))


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
        return case.history.rate(r.Host, of=lambda h: h.user_seconds + h.system_seconds, seconds=CPU_SECONDS)
    return case.history.rate(r.Affinity, pid, of=lambda a: a.busy_seconds, seconds=CPU_SECONDS)


def spare_cores(case: Case, pid: int) -> float | None:
    """CPUs of the machine that no process uses; None where it is not known, or where a rank may use only some of them."""
    cpus, host = allowed_cpus(case, pid), case.latest_host()
    if cpus is None or host is None or cpus < host.reading.cpus_online:
        return None
    return case.history.rate(r.Host, of=lambda h: h.idle_seconds, seconds=CPU_SECONDS)


def confined(case: Case, pid: int) -> frozenset[int] | None:
    """The CPUs of a rank that may use only some of the machine's, where it is known what is computed on these; else None."""
    seen = case.history.latest(r.Affinity, pid)
    return frozenset(seen.reading.cpus) if seen is not None and seen.reading.busy_seconds is not None else None


def steal_share(case: Case) -> float | None:
    """Share of the machine's CPU time that the hypervisor gave to others."""
    stolen = case.history.rate(r.Host, of=lambda h: h.steal_seconds, seconds=CPU_SECONDS)
    host = case.latest_host()
    return stolen / host.reading.cpus_online if stolen is not None and host is not None else None


# The causes

THROTTLED = THROTTLED_CPU.line("""
    the CPU quota[ of {quota:g} CPUs] stops the job in {share:.0%} of its periods
    - saw cgroup of {path}: throttled | {throttled:.0f} of {periods:.0f} periods, {stopped:.2f} s per second over all threads | 0
      periods
    - not contended_cpu: the group itself is throttled
    - next: raise the container's CPU limit (cpu.max), or use fewer threads and workers
""")


def judge_throttled_cpu(case: Case) -> Outcome:
    """Fires if the control group is throttled in a good share of its periods, and that costs time."""
    for rank, _ in working(case):
        for (path,) in case.history.entities(r.Cgroup):
            growth = partial(case.history.growth, r.Cgroup, path, seconds=WINDOW_SECONDS)
            periods, throttled = growth(of=lambda g: g.periods), growth(of=lambda g: g.throttled_periods)
            stopped = case.history.rate(r.Cgroup, path, of=lambda g: g.throttled_seconds, seconds=WINDOW_SECONDS)
            if not periods or not throttled or periods[0] <= 0 or throttled[0] / periods[0] < LOST_SHARE:
                continue
            latest = case.history.latest(r.Cgroup, path)
            quota = latest.reading.quota_cpus if latest else None
            share = throttled[0] / periods[0]
            lost = _lost_by_quota(case, rank, share, stopped)
            sure = noted(lost, max(Level.HIGH, certainty(lost or 0.0)))
            facts = Facts(quota=quota or None, share=share, stopped=stopped or 0.0, path=path)
            facts |= Facts(throttled=throttled[0], periods=periods[0])
            return slow(case, THROTTLED, rank, lost or 0.0, confidence=sure, culprits=(), **facts)
    return None


def _lost_by_quota(case: Case, rank: Member, share: float, stopped: float | None) -> float | None:
    """The largest share of the time that the quota can have cost; None if neither the kernel nor a thread says how long it lasted.

    The kernel adds up all CPUs of the group. A thread that is stopped by the quota is runnable and waits for a CPU.
    """
    threads = [(rank.pid, case.progress[rank.pid].thread)]
    threads += [(worker.pid, worker.pid) for worker in case.job.workers(rank.pid) if worker.alive]
    delays = (motion(case.history, *thread, WINDOW_SECONDS).delay_share for thread in threads)
    longest = max((delay for delay in delays if delay is not None), default=None)
    known = [one for one in (stopped, longest) if one is not None]
    return min(share, *known) if known else None


WANT_CPUS = OVERSUBSCRIBED_THREADS.line("""
    {threads} threads of the job compete for {cpus:.0f} CPUs{where}; the training thread waits for a CPU {delay:.0%} of the time
    - saw thread of the job: more busy threads than CPUs | {threads} busy threads, {cpus:.0f} CPUs allowed | at most {cpus:.0f}
    - saw schedstat: waits for a CPU | {delay:.0%} of the time runnable but not running | below 5 %
    - not contended_cpu: the job itself uses the CPU time
    - next: OMP_NUM_THREADS={each}
    - next: torch.set_num_threads(1) in workers; fewer workers, or more CPUs for the job
""")
OWN_THREADS = replace(WANT_CPUS, next=("let fewer of these threads compute at once, or give the job more CPUs",))


def judge_oversubscribed_threads(case: Case) -> Outcome:
    """Fires if the job's own threads crowd its CPUs."""
    for rank, _ in working(case):
        cpus, wanted = allowed_cpus(case, rank.pid), demand(case, rank.pid)
        if case.progress[rank.pid].kind != "moving" or cpus is None or wanted is None:
            continue
        late = starving(case)
        others = burnt_by_others(case, rank.pid)
        delay = delay_share(case, rank.pid) or 0.0
        threads = len(wanted.difference(late.producers if late is not None else ()))
        alone = confined(case, rank.pid) is not None and others is not None and others < OTHERS_SHARE
        least = cpus + 1 if alone and late is None else BUSY_PER_CPU * cpus + 1
        if threads < least or delay < DELAYED_SHARE:
            continue
        if others is not None and others > MOSTLY and threads < CROWD_PER_CPU * cpus:
            continue
        beside, needed = _beside(case, rank, wanted), _may_need_them(case, rank, wanted, others, cpus)
        each = max(1, int(cpus // max(1, sharers(case, rank.pid))))
        line, facts = WANT_CPUS, Facts(threads=len(wanted), cpus=cpus, delay=delay, where="", each=each)
        if 2 * len(beside) > len(wanted):
            where = f", {len(beside)} of them the program's own, mostly at {show(beside[0].frame)}"
            line, facts = OWN_THREADS, facts | Facts(where=where, culprits=tuple(map(culprit, beside[:FEW])))
        sure = Level.MEDIUM if needed else max(Level.HIGH, certainty(delay))
        return slow(case, line, rank, delay, confidence=sure, **facts)
    return None


def _beside(case: Case, rank: Member, wanted: Demand) -> list[Node]:
    """The threads that the program started beside its training thread and that want a CPU, if they are at lines of its own."""
    tids = case.beside(rank)
    nodes = (node_of(case.history, case.job, rank.pid, tid) for tid in tids if (rank.pid, tid) in wanted)
    return [node for node in nodes if node.frame is not None]


def _may_need_them(case: Case, rank: Member, wanted: Demand, others: float | None, cpus: float) -> bool:
    """True if there may just be too much work for these CPUs: by other processes, or by DataLoader workers of one thread each."""
    shared = others is not None and others >= OTHERS_SHARE and len(wanted) < CROWD_PER_CPU * cpus
    workers = {(worker.pid, worker.pid) for worker in case.job.workers(rank.pid)}
    needed = len(wanted - workers) < BUSY_PER_CPU * cpus + 1 and not workers.isdisjoint(wanted)
    return shared or needed


# Of the CPU time used, by processes outside of the job. A neighbour of nice 4 on the job's only core uses 0.29. On CPUs that the
# job is confined to and does not fill, only others can delay it: perfwatch itself uses 0.07 to 0.17 there, which is subtracted.
OTHERS_SHARE, OTHERS_ON_CONFINED_CPUS = OFTEN, NOTABLE
CONTENDED = CONTENDED_CPU.line("""
    the training thread waits for a CPU {delay:.0%} of the time while other processes use {others:.0%} of the CPU time[{stolen:if} and
    {steal:.0%} is stolen by the hypervisor]
    - saw schedstat: waits for a CPU | {delay:.0%} of the time runnable but not running | below 5 %
    - saw host of {where}: used outside the job | {others:.0%} of the CPU time used, steal {steal:.0%} | below {least:.0%}
    - not oversubscribed_threads: runnable threads of the job: {crowd}
    - next: top -o %CPU
    - next: taskset -cp CPUS PID gives the job CPUs of its own
""")


def judge_contended_cpu(case: Case) -> Outcome:
    """Fires if the training thread waits for a CPU that other processes use.

    Never sure: a crowded machine hides what else is slow.
    """
    for rank, _ in sorted(working(case), key=lambda one: -(delay_share(case, one[0].pid) or 0.0)):
        delay = delay_share(case, rank.pid)
        others = burnt_by_others(case, rank.pid)
        steal = steal_share(case) or 0.0
        stolen = steal >= DELAYED_SHARE
        if case.progress[rank.pid].kind != "moving" or delay is None or not (delay >= DELAYED_SHARE or stolen):
            continue
        if case.progress[rank.pid].steps is None and not case.profile(rank, MINUTE_SECONDS).seen(*UPDATES):
            continue  # passes without an update are no steps: an evaluation or an export is judged by what it does
        crowd = len(demand(case, rank.pid) or ())
        cpus = allowed_cpus(case, rank.pid)
        own = confined(case, rank.pid)
        least = OTHERS_ON_CONFINED_CPUS if own is not None and 0 < crowd <= len(own) else OTHERS_SHARE
        if not stolen and (others is None or others < least or (cpus is not None and crowd > 2 * cpus + 1)):
            continue
        lost, where = max(delay, steal), "host" if own is None else f"the {len(own)} CPUs of pid {rank.pid}"
        facts = Facts(
            delay=delay, others=others or 0.0, steal=steal, stolen=stolen, least=least, crowd=crowd, where=where
        )
        more = Facts(explains=RESIDUE * lost, confidence=Level.MEDIUM, culprits=())
        return slow(case, CONTENDED, rank, lost, **facts, **more)
    return None


# major faults; a healthy loop has none after its first epoch; pages that were evicted and are needed again
FAULTS_PER_SECOND = 50.0
PRESSED = MEMORY_PRESSURE.line("""
    memory is short: {faults:,.0f} major page faults a second; {scarce.observed}
    - saw usage: waits for pages | {faults:,.0f} major faults/s | 0
    - not starved_by_storage: the reads are page faults, and memory is at its limit
    - next: raise the memory limit, or use fewer workers
""")


def judge_memory_pressure(case: Case) -> Outcome:
    """Fires on many major faults together with a sign of scarce memory."""
    for rank, seen in working(case):
        pids = [member.pid for member in case.job.of_rank(rank.pid) if member.alive]
        rate = partial(case.history.rate, r.ProcessUsage, of=lambda u: float(u.major_faults), seconds=WINDOW_SECONDS)
        faults = sum(rate(pid) or 0.0 for pid in pids)
        if faults < FAULTS_PER_SECOND or not (scarce := _scarce(case)):
            continue
        lost = _lost_by_faults(case, rank)
        sure, facts = noted(lost, Level.CERTAIN), Facts(frame=besides_training(seen), faults=faults)
        more = Facts(explains=behind(lost), more=scarce, scarce=scarce[0])
        return slow(case, PRESSED, rank, lost or 0.0, confidence=sure, **facts, **more)
    return None


def _lost_by_faults(case: Case, rank: Member) -> float | None:
    """The largest share of the time that page faults can have cost the training thread: it sleeps meanwhile, or PSI says so."""
    asleep, stalled = case.motion(rank, WINDOW_SECONDS).asleep_share, _stalled(case)
    if asleep is None:
        return stalled or None
    otherwise = budget(case, rank).share(Bin.RANKS, Bin.GPU)  # it sleeps in them whatever its memory does
    return max(min(asleep, 1.0 - otherwise), stalled)


def _stalled(case: Case) -> float:
    """The share of the time in which some task of the machine waits for memory."""
    rate = partial(case.history.rate, r.Host, seconds=WINDOW_SECONDS)
    waited = rate(of=lambda h: h.pressure["memory"].some_microseconds if "memory" in h.pressure else None)
    return (waited or 0.0) / 1e6


def _scarce(case: Case) -> tuple[Evidence, ...]:
    """What says that memory is short."""
    groups = (case.history.latest(r.Cgroup, path) for (path,) in case.history.entities(r.Cgroup))
    found = [one for group in groups if group is not None and (one := _at_its_limit(case, group)) is not None]
    if (stalled := _stalled(case)) > NOTABLE:
        found.append(case.saw("pressure", "host", "tasks stall for memory", f"{stalled:.0%} of the time", "below 10 %"))
    if swapped := case.history.rate(r.Host, of=lambda h: float(h.swapped_in_bytes), seconds=WINDOW_SECONDS):
        found.append(case.saw("host", "host", "swap is read", f"{swapped / 2**20:.1f} MiB/s", "0"))
    return tuple(found)


def _at_its_limit(case: Case, seen: Seen[r.Cgroup]) -> Evidence | None:
    """That a control group is at its memory limit; None if it is full of the pages of files that are read once."""
    group, history = seen.reading, case.history
    back = history.rate(r.Cgroup, group.path, of=lambda g: g.refaulted_pages, seconds=WINDOW_SECONDS)
    if back is not None and back < FAULTS_PER_SECOND:
        return None
    if group.memory_bytes and group.memory_limit_bytes and group.memory_bytes >= NEARLY_ALL * group.memory_limit_bytes:
        used = f"{group.memory_bytes / 2**20:,.0f} of {group.memory_limit_bytes / 2**20:,.0f} MiB used"
        return case.saw("cgroup", group.path, "at its memory limit", used, "below its limit", seen.at)
    growth = partial(history.growth, r.Cgroup, group.path, seconds=WINDOW_SECONDS)
    hits = growth(of=lambda g: float((g.memory_max_events or 0) + (g.memory_high_events or 0)))
    if not hits or hits[0] <= 0:
        return None
    return case.saw("cgroup", group.path, "hits its memory limit", f"+{hits[0]:.0f} times", "+0", seen.at)


SHM_FULL = SHARED_MEMORY_EXHAUSTED.line("""
    /dev/shm {now} {used:.0%} full ({filled:,.0f} of {room:,.0f} MiB)
    - not memory_pressure: it is /dev/shm that is full
    - next: docker run --shm-size=8g, or an emptyDir with medium: Memory
    - next: df -h /dev/shm; ls -lS /dev/shm | head
""")


def judge_shared_memory_exhausted(case: Case) -> Outcome:
    """Fires if the job's /dev/shm is almost full. A loader that fails for it removes its batches: there is room for a moment."""
    lately = reversed(case.history.series(r.Host, seconds=NOW_SECONDS))
    host = max(lately, key=_used_share, default=case.latest_host())
    if host is None or (used := _used_share(host)) < NEARLY_ALL:
        return None
    newest = case.latest_host()
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        # Workers that have just ended: of themselves, or because their loader fails and ends all of them, which takes seconds.
        ends = (case.history.latest(r.ProcessEnded, worker.pid) for worker in case.job.workers(rank.pid))
        ended = [one.reading for one in ends if one is not None and one.at >= case.at - WINDOW_SECONDS]
        failed = any(one.exit_code != 0 for one in ended)
        died = any(one.exit_code or one.signal for one in ended)
        if not seen.samples or (case.progress[rank.pid].kind == "still" and not ended):
            continue
        spent = budget(case, rank)
        saving = spent.share(Bin.SAVING)
        lost = 1.0 if failed else saving + spent.share(Bin.WORKERS)
        # Workers that end in order may be started anew for each epoch, beside a data set that fills /dev/shm.
        sure = Level.HIGH if (died or saving > 0) and seen.samples >= FEW_SAMPLES else Level.MEDIUM
        filled, room = ((size or 0) / 2**20 for size in (host.reading.shm_used_bytes, host.reading.shm_total_bytes))
        facts = Facts(now="is" if newest is None or newest.at <= host.at else "a moment ago was")
        facts |= Facts(
            used=used, filled=filled, room=room, frame=spent.of(Bin.SAVING).top_line() or besides_training(seen)
        )
        full = case.saw("host", "/dev/shm", "almost full", f"{used:.0%} used", "below 90 %", host.at)
        more = Facts(explains=behind(lost), confidence=noted(lost, sure), before=(full,))
        return slow(case, SHM_FULL, rank, lost, **facts, **more)
    return None


def _used_share(host: Seen[r.Host]) -> float:
    """Of the /dev/shm that the job sees; 0 if it could not be read."""
    return (host.reading.shm_used_bytes or 0) / (host.reading.shm_total_bytes or 1)


RULES = (
    Rule(THROTTLED_CPU, judge_throttled_cpu),
    Rule(MEMORY_PRESSURE, judge_memory_pressure),
    Rule(SHARED_MEMORY_EXHAUSTED, judge_shared_memory_exhausted),
    Rule(OVERSUBSCRIBED_THREADS, judge_oversubscribed_threads),
    Rule(CONTENDED_CPU, judge_contended_cpu),
)
