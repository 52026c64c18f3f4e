"""The job runs out of memory slowly: it waits for pages again and again."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.progress import besides_training
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.slowness import asleep_share, behind, noted, slow, working
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Cgroup, Host, ProcessUsage

CAUSE = Cause("memory_pressure", "slow", "node", (ProcessUsage,))

FAULTS_PER_SECOND = 50.0  # a healthy loop has none after its first epoch
NEAR_LIMIT = 0.95
COMES_BACK = 50.0  # pages per second: so many faults may be nothing else than pages that were taken away before
OTHER_WAITS = ("collective", "device_sync")  # in which a training thread sleeps, whatever its memory does
STALL_SHARE = 0.05  # PSI memory some
WINDOW_SECONDS = 15.0


def judge(case: Case) -> Outcome:
    """Fires on many major faults together with a sign of scarce memory."""
    for rank, _ in working(case):
        pids = [member.pid for member in case.job.of_rank(rank.pid) if member.alive]
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
        lost = _lost(case, rank)
        return slow(
            case,
            CAUSE,
            rank,
            explains=behind(lost),
            lost=lost or 0.0,
            confidence=noted(lost, 0.9),
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


def _lost(case: Case, rank: Member) -> float | None:
    """Share of the time that waiting for pages can have cost the training thread: it sleeps then, or the kernel says so itself."""
    asleep, stalled = asleep_share(case, rank, WINDOW_SECONDS), _stalled(case)
    if asleep is None:
        return stalled or None
    otherwise = case.profile(rank, WINDOW_SECONDS).share(*OTHER_WAITS)
    return max(min(asleep, 1.0 - otherwise), stalled)


def _stalled(case: Case) -> float:
    """Share of the time that some task of the machine waits for memory."""
    waited = case.history.rate(
        Host,
        of=lambda h: float(h.pressure["memory"].some_microseconds) if "memory" in h.pressure else None,
        seconds=WINDOW_SECONDS,
    )
    return (waited or 0.0) / 1e6


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
        back = case.history.rate(Cgroup, *key, of=lambda g: g.refaulted_pages, seconds=WINDOW_SECONDS)
        if back is not None and back < COMES_BACK:
            continue  # full of the pages of files that are read once
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
    stalled = _stalled(case)
    if stalled > STALL_SHARE:
        found.append(case.saw("pressure", "host", "tasks stall for memory", f"{stalled:.0%} of the time", "below 5 %"))
    swapped = case.history.rate(Host, of=lambda h: float(h.swapped_in_bytes), seconds=WINDOW_SECONDS)
    if swapped:
        found.append(case.saw("host", "host", "swap is read", f"{swapped / 2**20:.1f} MiB/s", "0"))
    return tuple(found)


RULES = (Rule(CAUSE, judge),)
