"""The traces that each debugging aid leaves in a rank, and what it is known to cost there."""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.debugging import (
    anomaly_around,
    anomaly_on,
    formats_stacks,
    mode_on,
    profiles,
    recorded_for_good,
    waiting,
    weighed,
)
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import LOST_SHARE, NOTED, noted
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Frame, ProcessUsage

STACKS_SHARE = 0.08  # of samples in the formatting of stacks: a healthy loop formats none
FEWER_STACKS = 0.05  # where they are known to be anomaly detection's
PROFILER_SHARE = 0.1
SEEN, UNWEIGHED = 0.85, 0.75  # nobody can tell from outside what a profiler costs whose frames are never seen
BLOCKING = "CUDA_LAUNCH_BLOCKING"


@dataclass(frozen=True)
class Aid:
    """One aid that is on.

    Args:
        evidence: the trace that it leaves.
        lost: the share of the time that it takes, as far as that is seen.
        explains: the share of the time that it explains, where that is more than it takes itself.
        sure: how sure it is that it costs anything.
        line: the line of the program that it works at, where only the aid itself knows it.
        around: the line around which it was switched on.
    """

    evidence: Evidence
    lost: float = 0.0
    explains: float = 0.0
    sure: float = NOTED
    line: Frame | None = None
    around: Frame | None = None


def aids(case: Case, rank: Member, seen: Profile) -> tuple[Aid, ...]:
    """All that are on in a rank, the best seen first."""
    found = (_anomaly(case, rank, seen), _profiler(case, rank, seen), _blocking(case, rank))
    return tuple(aid for aid in (*found, _for_good(case, seen), _tracer(case, rank)) if aid is not None)


def _anomaly(case: Case, rank: Member, seen: Profile) -> Aid | None:
    formatting, known, pid = formats_stacks(seen), anomaly_on(case, rank, seen), f"pid {rank.pid}"
    held = min(waiting(case, rank), formatting + seen.share("backward")) if known else 0.0
    if formatting >= (FEWER_STACKS if known else STACKS_SHARE):
        what, share = (
            "anomaly detection formats a stack for each operation",
            f"{formatting:.0%} of {seen.samples} samples",
        )
        found = case.saw("stack", pid, what, share, "0 %")
        return Aid(found, formatting, held, SEEN, around=anomaly_around(case, seen))
    if held >= LOST_SHARE and mode_on(case, rank, "anomaly_detection"):
        found = case.saw("agent", pid, "anomaly detection is on", "after the newest step", "off")
        return Aid(found, held, sure=SEEN, around=anomaly_around(case, seen))
    return None


def _profiler(case: Case, rank: Member, seen: Profile) -> Aid | None:
    share = seen.share_where(profiles)
    if share < PROFILER_SHARE:
        return None
    observed = f"{share:.0%} of {seen.samples} samples"
    return Aid(case.saw("stack", f"pid {rank.pid}", "a profiler runs in the loop", observed, "0 %"), share, sure=SEEN)


def _blocking(case: Case, rank: Member) -> Aid | None:
    if case.job.members[rank.pid].process.environment.get(BLOCKING) != "1":
        return None
    lost = waiting(case, rank)  # each launch waits for its kernel, and the card for the next
    found = case.saw("environment", f"pid {rank.pid}", f"{BLOCKING} is set", "1", "unset")
    return Aid(found, lost, sure=noted(lost if weighed(case, rank) else None, SEEN))


def _for_good(case: Case, seen: Profile) -> Aid | None:
    always = recorded_for_good(case, seen)
    if not always:
        return None
    found = case.saw("source", show(always) or "", "the loop runs inside torch's profiler", "no schedule", "none")
    return Aid(found, sure=UNWEIGHED, line=always)


def _tracer(case: Case, rank: Member) -> Aid | None:
    usage = case.history.latest(ProcessUsage, rank.pid)
    if usage is None or not usage.reading.tracer_pid:
        return None
    tracer = f"TracerPid {usage.reading.tracer_pid}"
    return Aid(case.saw("usage", f"pid {rank.pid}", "a tracer is attached", tracer, "0", usage.at))
