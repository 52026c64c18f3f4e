"""The program is still starting."""

from perfwatch.triage.busy import MOVES_SHARE, Phase, phases
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.preparing import prepares
from perfwatch.verdict import Evidence, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("starting", "busy", "user_code", (Thread, Stack))

STARTING_SHARE = 0.5
YOUNG_SECONDS = 120.0
RUNNING_SHARE = 0.5  # of a core, waiting for one included
SEEN, AWAITED, COUNTED, INFERRED = 0.92, 0.85, 0.7, 0.65


def judge(case: Case) -> Outcome:
    """Fires on a rank in imports, model loading or preparation before its first step."""
    for phase in phases(case):
        steps = case.steps(phase.rank)
        if steps is not None and steps.count > 0:
            continue
        share = phase.profile.share("import", "load", "init")
        if share >= STARTING_SHARE:
            confidence = SEEN
        elif phase.runs > RUNNING_SHARE and _young(case, phase) and not phase.profile.seen("loader", "collective"):
            confidence = COUNTED
        elif phase.runs > MOVES_SHARE and case.awaited_at_start(phase.rank.pid):
            confidence = AWAITED
        elif phase.runs > RUNNING_SHARE and prepares(case, phase.rank):
            confidence = INFERRED
        else:
            continue
        if phase.runs < MOVES_SHARE and phase.motion.distinct <= 1:
            continue
        what = "imports, loading or initialisation" if share >= STARTING_SHARE else "work before the first step"
        return phase.finding(
            CAUSE,
            "the program prepares: work of its own in Python, before the first step or between two"
            if confidence == INFERRED
            else f"the program is still starting: {what}",
            confidence,
            (_evidence(case, phase, share),),
        )
    return None


def _evidence(case: Case, phase: Phase, share: float) -> Evidence:
    """What its stacks show: frames of imports and loading, or merely that it runs."""
    loads, runs = share >= STARTING_SHARE, f"{phase.runs:.0%} of a core"
    return case.saw(
        "stack",
        f"pid {phase.rank.pid}",
        "imports, loads or initialises" if loads else "runs, and has made no step",
        f"{share:.0%} of {phase.profile.samples} samples, {runs}"
        if loads
        else f"{runs}, {phase.profile.samples} samples",
        "training code",
    )


def _young(case: Case, phase: Phase) -> bool:
    """Whether the agent counts, has counted nothing yet, and the process began a moment ago."""
    process = case.job.members[phase.rank.pid].process
    return case.steps(phase.rank) is not None and (process.age_seconds or 0.0) + case.at < YOUNG_SECONDS


RULES = (Rule(CAUSE, judge),)
