"""Reinforcement learning that collects experience: most of the time goes into its environment, with updates in between."""

from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.data_makers import producers, works
from perfwatch.triage.shares.profile import Profile, lasting
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.words.frames import any_tag, inner_tags, show
from perfwatch.verdict import Culprit, Finding
from perfwatch_probes.readings import Stack

PLAIN = 0.78  # confidence: training without gradients (an evolution strategy) looks the same
MOSTLY = 0.5  # of the time in the environment
LONGER_SECONDS = 20.0  # rollouts and updates come by turns
AT_WORK, LATER = 0.4, 2.0  # share of the time that the last one works, and how many times that of each other


@dataclass(frozen=True)
class Last:
    """The one of several environments, each in a process of its own, for which the others are waited with."""

    pid: int
    share: float
    line: str


def collects(case: Case, cause: Cause, rank: Member) -> Finding | None:
    """That it does so, where most of its time is spent in there; None otherwise."""
    seen = case.profile(rank, LONGER_SECONDS)
    steps = in_environment(case.history, seen)
    share = seen.share_where(steps)
    if share < MOSTLY or not (seen.seen("forward") or computed(case, rank)):
        return None
    line, last = show(seen.top_line(steps)), _last(case, rank, seen, steps)
    late = (
        f"; it waits for process {last.pid}, which works {last.share:.0%} of the time, mostly at {last.line}"
        if last
        else ""
    )
    return Finding(
        cause=cause.name,
        state="busy",
        summary=f"it collects experience: its environment takes {share:.0%} of the time, mostly at {line}" + late,
        confidence=PLAIN,
        owner=cause.owner,
        culprits=(
            *([Culprit(pid=rank.pid, rank=rank.rank, worker_pid=last.pid, frame=last.line)] if last else []),
            Culprit(pid=rank.pid, rank=rank.rank, frame=line),
        ),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "is in step() of its environment",
                f"{share:.0%} of {seen.samples} samples",
                "as much as the environment costs",
            ),
        ),
        next=(
            f"look at {last.line}: the other environments are done before it"
            if last
            else "if that is too much: more environments at a time, in processes of their own, or a cheaper step()",
        ),
    )


def _last(case: Case, rank: Member, whole: Profile, steps: Callable[[Stack], bool]) -> Last | None:
    """None where the environment is no process of its own, or they are done at about the same time."""
    receives = whole.share_where(lambda stack: steps(stack) and any_tag(inner_tags(stack), "mp_receive"))
    if receives < MOSTLY * whole.share_where(steps):
        return None
    pids = [pid for pid, _ in producers(case, rank) if pid != rank.pid and case.job.members[pid].role != "worker"]
    seen = {pid: lasting(case.history, pid, pid, LONGER_SECONDS) for pid in pids}
    shares = {pid: one.share_where(_at_work) for pid, one in seen.items() if one.samples}
    if len(shares) < 2:
        return None
    last = max(shares, key=lambda pid: shares[pid])
    others = max(share for pid, share in shares.items() if pid != last)
    if shares[last] < AT_WORK or shares[last] < LATER * others:
        return None
    line = show(seen[last].top_line(_at_work))
    return Last(last, shares[last], line) if line is not None else None


def _at_work(stack: Stack) -> bool:
    return works(stack) and not any_tag(inner_tags(stack), "mp_receive", "mp_send")
