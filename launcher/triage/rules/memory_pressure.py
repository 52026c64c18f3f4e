"""The job runs out of memory slowly: it waits for pages again and again.

What it means
    The memory limit (or the machine) is too small for the working set: pages are taken away and read back, over and over.

How it is recognised
    The job has many major page faults per second, and the group's limit is reached, tasks stall for memory, or swap is read.

What it is mistaken for
    ``starved_by_storage``: reads of files by calls, not by faults. A first pass over a mapped file: the faults stop.

What to do next
    Raise the memory limit, fewer workers, or a smaller working set.
"""

from perfwatch.probes.readings import Cgroup, Host, ProcessUsage
from perfwatch.triage.case import Case
from perfwatch.triage.progress import besides_training
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import slow, working
from perfwatch.triage.verdict import Alternative, Evidence, Outcome

CAUSE = Cause("memory_pressure", "slow", "node", (ProcessUsage,))

FAULTS_PER_SECOND = 50.0  # a healthy loop has none after its first epoch
NEAR_LIMIT = 0.95
STALL_SHARE = 0.05  # PSI memory some
WINDOW_SECONDS = 15.0


def judge(case: Case) -> Outcome:
    """Fires on many major faults together with a sign of scarce memory."""
    for rank, _ in working(case):
        pids = [m.pid for m in case.job.members.values() if m.alive and m.rank_pid == rank.pid]
        faults = sum(
            case.history.rate(ProcessUsage, pid, of=lambda u: float(u.major_faults), seconds=WINDOW_SECONDS) or 0.0
            for pid in pids
        )
        if faults < FAULTS_PER_SECOND:
            continue
        scarce = _scarce(case)
        if not scarce:
            continue
        frame = besides_training(case.profile(rank, WINDOW_SECONDS))
        return slow(
            case,
            CAUSE,
            rank,
            explains=1.0,
            lost=0.4,
            confidence=0.9,
            frame=frame,
            summary=f"memory is short: {faults:,.0f} major page faults a second; {scarce[0].observed}",
            evidence=(
                case.saw("usage", f"pid {rank.pid}", "waits for pages", f"{faults:,.0f} major faults/s", "0"),
                *scarce,
            ),
            alternatives=(
                Alternative(
                    cause="starved_by_storage", refuted_by="the reads are page faults, and memory is at its limit"
                ),
            ),
            next=("raise the memory limit, or use fewer workers",),
        )
    return None


def _scarce(case: Case) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    for key in case.history.entities(Cgroup):
        seen = case.history.latest(Cgroup, *key)
        if seen is None:
            continue
        group = seen.reading
        hits = case.history.growth(
            Cgroup,
            *key,
            of=lambda g: float((g.memory_max_events or 0) + (g.memory_high_events or 0)),
            seconds=WINDOW_SECONDS,
        )
        if (
            group.memory_bytes
            and group.memory_limit_bytes
            and group.memory_bytes >= NEAR_LIMIT * group.memory_limit_bytes
        ):
            found.append(
                case.saw(
                    "cgroup",
                    group.path,
                    "at its memory limit",
                    f"{group.memory_bytes / 2**20:,.0f} of {group.memory_limit_bytes / 2**20:,.0f} MiB used",
                    "room to spare",
                    seen.at,
                )
            )
        elif hits and hits[0] > 0:
            found.append(
                case.saw("cgroup", group.path, "hits its memory limit", f"+{hits[0]:.0f} times", "+0", seen.at)
            )
    stalled = case.history.rate(
        Host,
        of=lambda h: float(h.pressure["memory"].some_microseconds) if "memory" in h.pressure else None,
        seconds=WINDOW_SECONDS,
    )
    if stalled is not None and stalled / 1e6 > STALL_SHARE:
        found.append(
            case.saw("pressure", "host", "tasks stall for memory", f"{stalled / 1e6:.0%} of the time", "below 5 %")
        )
    swapped = case.history.rate(Host, of=lambda h: float(h.swapped_in_bytes), seconds=WINDOW_SECONDS)
    if swapped:
        found.append(case.saw("host", "host", "swap is read", f"{swapped / 2**20:.1f} MiB/s", "0"))
    return tuple(found)
