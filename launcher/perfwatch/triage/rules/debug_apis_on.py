"""A debugging aid was left on: anomaly detection, the autograd profiler, blocking launches, a tracer."""

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.debugging import profiles, tool_above, waiting
from perfwatch.triage.shares.debugging_aids import SEEN, Aid, aids
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import FEW_SAMPLES, LOST_SHARE, certainty, slow, working
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Alternative, Finding, Outcome
from perfwatch_probes.readings import Stack

CAUSE = Cause("debug_apis_on", "slow", "user_code", (Stack,))

RESIDUE = 0.6  # a cause that says what the host waits for is the better answer; that Python is slow is not


def judge(case: Case) -> Outcome:
    """Fires on the traces that each debugging aid leaves."""
    for rank, seen in working(case):
        if seen.samples < FEW_SAMPLES:
            continue
        if found := aids(case, rank, seen):
            return _on(case, rank, seen, found)
        if (tool := tool_above(case, rank)) and waiting(case, rank) >= LOST_SHARE:
            return _under(case, rank, tool)
    return None


def _on(case: Case, rank: Member, seen: Profile, found: tuple[Aid, ...]) -> Finding:
    """One or more aids are on, the first of which is the best seen."""
    lost, sure = max(aid.lost for aid in found), max(aid.sure for aid in found)
    frame = seen.top_line(lambda stack: "format_stack" in tags(stack) or profiles(stack))
    around = found[0].around
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        explains=max(lost, *(aid.explains for aid in found)),
        confidence=max(sure, certainty(lost)) if lost >= LOST_SHARE else sure,
        frame=frame or next((aid.line for aid in found if aid.line), None),
        summary=f"a debugging aid is on: {found[0].evidence.claim} ({found[0].evidence.observed})"
        + (f" at {show(frame)}" if frame else "")
        + (f", switched on around {show(around)}" if around else ""),
        evidence=tuple(aid.evidence for aid in found),
        alternatives=(
            Alternative(
                cause="host_bound_python",
                refuted_by="it takes the time" if lost else "it is on, whatever it costs",
            ),
        ),
        next=("take torch.autograd.set_detect_anomaly, the profiler or the variable out",),
    )


def _under(case: Case, rank: Member, tool: str) -> Finding:
    """Each CUDA call of the rank passes through a tool, and its card waits for that, if for nothing else that is known."""
    lost = waiting(case, rank)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        explains=RESIDUE * lost,
        confidence=min(SEEN, certainty(lost)),
        culprits=(),
        summary=f"the job runs under {tool}, through which every CUDA call passes; its GPU waits for the host {lost:.0%} of the time",
        evidence=(case.saw("process", f"pid {rank.pid}", f"runs under {tool}", "a process above it", "none"),),
        alternatives=(Alternative(cause="host_bound_python", refuted_by=f"what the host does passes through {tool}"),),
        next=(f"start it without {tool}, and look again",),
    )


RULES = (Rule(CAUSE, judge),)
