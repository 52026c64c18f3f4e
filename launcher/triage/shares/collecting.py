"""Reinforcement learning that collects experience: most of the time goes into its environment, with updates in between."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.verdict import Culprit, Finding
from perfwatch.triage.words.frames import show

PLAIN = 0.78  # confidence: training without gradients (an evolution strategy) looks the same
MOSTLY = 0.5  # of the time in the environment
LONGER_SECONDS = 20.0  # rollouts and updates come by turns


def collects(case: Case, cause: Cause, rank: Member) -> Finding | None:
    """That it does so, where most of its time is spent in there; None otherwise."""
    seen = case.profile(rank, LONGER_SECONDS)
    steps = in_environment(case.history, seen)
    share = seen.share_where(steps)
    if share < MOSTLY or not (seen.seen("forward") or computed(case, rank)):
        return None
    line = show(seen.top_line(steps))
    return Finding(
        cause=cause.name,
        state="busy",
        summary=f"it collects experience: its environment takes {share:.0%} of the time, mostly at {line}",
        confidence=PLAIN,
        owner=cause.owner,
        culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "is in step() of its environment",
                f"{share:.0%} of {seen.samples} samples",
                "as much as the environment costs",
            ),
        ),
        next=("if that is too much: more environments at a time, in processes of their own, or a cheaper step()",),
    )
