"""Busy: the program is still starting.

What it means
    Imports, the data set's index, a model being loaded: no step has been made yet, and none is due.

How it is recognised
    No step yet, the training thread is in imports, in loading or in the initialisation of weights, and it runs or reads.

What it is mistaken for
    A hang in a rendezvous or on a mount: there the thread does not move.

What to do next
    Wait; if it lasts, the named line says what takes so long.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Outcome

CAUSE = Cause("starting", "busy", "user_code", (Thread, Stack))

STARTING_SHARE = 0.5
YOUNG_SECONDS = 120.0


def judge(case: Case) -> Outcome:
    """Fires on a rank in imports or model loading before its first step."""
    for phase in phases(case):
        steps = case.steps(phase.rank)
        if steps is not None and steps.count > 0:
            continue
        share = phase.profile.share("import", "load", "init")
        young = _age_seconds(case, phase.rank.pid) < YOUNG_SECONDS and steps is not None and steps.count == 0
        if share < STARTING_SHARE and not (
            young and phase.runs > 0.5 and not phase.profile.seen("loader", "collective")
        ):
            continue
        if phase.runs < MOVES_SHARE and phase.motion.distinct <= 1:
            continue
        return phase.finding(
            CAUSE,
            "the program is still starting: imports, loading or initialisation",
            0.9 if share >= STARTING_SHARE else 0.7,
            (
                case.saw(
                    "stack",
                    f"pid {phase.rank.pid}",
                    "imports, loads or initialises",
                    f"{share:.0%} of {phase.profile.samples} samples",
                    "training code",
                ),
            ),
        )
    return None


def _age_seconds(case: Case, pid: int) -> float:
    process = case.job.members[pid].process
    return (process.age_seconds or 0.0) + case.at
