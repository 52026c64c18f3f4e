"""The loop turns, the optimizer does not."""

from perfwatch.triage.cards.accelerated import trained_for
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.progress import StepClock
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.due_steps import FEW_STEPS, counted, sampled
from perfwatch.triage.shares.leaving_early import WHAT_NEXT, leaves_early
from perfwatch.triage.shares.no_gradients import makes_no_gradients
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thrown_away import throws_away
from perfwatch.triage.shares.updates_before import accumulates, due, updates_vanished
from perfwatch.triage.shares.updating import updates
from perfwatch.triage.slowness import NOTED, WINDOW_SECONDS, slow
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Alternative, Finding, Outcome
from perfwatch_probes.readings import Stack

CAUSE = Cause("skipping_steps", "slow", "user_code", (Stack,))

FEW_SAMPLES = 40
BACKWARD_SHARE = 0.05
BACKWARD_TURNS = 6  # separate backward passes without one optimizer step
NO_STEP_SECONDS = 5.0  # by the agent's count
UNKNOWN_PACE_SECONDS = 60.0
# Times the longest step so far; and where nothing that goes with a step is seen: a wrapper may accumulate gradients over more passes
# than before, as Accelerate's does, and nobody sees it in the text.
LONGER, FAR_LONGER = 2.5, 30.0
# Samples of a step that are due by what goes with it: one that is made would be missed with e**-2.5, and with e**-5.
COMPANIONS, MANY_COMPANIONS = 2.5, 5.0
FEW_DUE = 0.75  # confidence between the two


def judge(case: Case) -> Outcome:
    """Fires on backward passes without an optimizer step, and on steps without a backward pass."""
    for rank in case.ranks:
        steps = case.steps(rank)
        since = WINDOW_SECONDS if steps is None or steps.ago_seconds is None else min(WINDOW_SECONDS, steps.ago_seconds)
        seen = case.profile(rank, since)
        rests = steps is None or _silent(case, rank, steps) > _usual(steps)
        if rests and seen.samples >= FEW_SAMPLES and (found := leaves_early(case, CAUSE, rank, seen)):
            return found
        if found := makes_no_gradients(case, CAUSE, rank) or throws_away(case, CAUSE, rank):
            return found
        if seen.samples < FEW_SAMPLES or seen.share("backward") < BACKWARD_SHARE:
            continue
        if seen.turns(_backward) >= BACKWARD_TURNS and (found := _without_update(case, rank, seen, steps, rests)):
            return found
    return None


def _backward(stack: Stack) -> bool:
    return "backward" in tags(stack) and not updates(stack)


def _without_update(case: Case, rank: Member, seen: Profile, steps: StepClock | None, rests: bool) -> Finding | None:
    """Whether no step goes with the backward passes of a rank; ``rests``: none came for longer than is usual, or none is counted."""
    beside, awaited, vanished = due(case, rank, seen), 0.0, False
    if not beside and accumulates(case.history, seen):
        return (
            None  # a round may be longer than those before, and only a step that is due clears gradients or clips them
        )
    if steps is not None:
        skipped = rests and (beside > 0 or _silent(case, rank, steps) > _usual(steps, FAR_LONGER))
    elif any(card.kind != "idle" for card in regimes(case.history, rank.pid)):
        return None  # clipping and scaling wait for a card, an update only starts its kernels: it is not seen for that
    else:
        vanished = updates_vanished(case, rank)
        enough = MANY_COMPANIONS if case.profile(rank).share_where(updates) else COMPANIONS
        awaited = WINDOW_SECONDS - seen.seconds if 1 <= beside < enough and not vanished else 0.0
        skipped = seen.share_where(updates) == 0.0 and (vanished or beside >= enough or awaited > 0)
    if not skipped:
        return None
    unseen = steps is None or (not steps.count and beside >= COMPANIONS)  # no step has ever told how long one takes
    sure = sampled(case, rank, seen, beside) if unseen else counted(case, rank, seen, steps.count if steps else 0)
    sure = min(sure, FEW_DUE) if steps is None and not vanished and beside < MANY_COMPANIONS else sure
    if awaited and sure == NOTED:
        return None
    at = ", at lines where no step was made before" if sure == NOTED and steps is not None else ""
    pid, turns = f"pid {rank.pid}", seen.turns(_backward)
    passes = f"{turns} passes, {beside:.1f} samples of a step due by what goes with it, 0 in one, of {seen.samples}"
    evidence = [case.saw("stack", pid, "backward without an optimizer step", passes, "one step per pass")]
    if steps:
        evidence.append(case.saw("steps", pid, "the count stands still", f"{steps.count} steps", "grows"))
    return slow(
        case,
        CAUSE,
        rank,
        decides_in_seconds=awaited,
        lost=1.0,
        confidence=sure,
        frame=seen.top_line(lambda stack: "backward" in tags(stack)),
        summary="the loop turns but the optimizer makes no step: "
        f"{turns} or more backward passes in {seen.seconds:.0f} s, no update{at}",
        evidence=tuple(evidence),
        alternatives=(Alternative(cause="evaluating", refuted_by="backward passes run"),),
        next=WHAT_NEXT,
    )


def _silent(case: Case, rank: Member, steps: StepClock) -> float:
    """Seconds since the newest step that was counted; where none was ever, since training code was first seen."""
    return trained_for(case, rank) if steps.ago_seconds is None else steps.ago_seconds


def _usual(steps: StepClock, times: float = LONGER) -> float:
    """How long a step may take here, by those that were made: gradients may be accumulated over many passes."""
    timed = times * (steps.longest_seconds or 0.0)
    return max(timed, UNKNOWN_PACE_SECONDS if steps.count < FEW_STEPS or not timed else NO_STEP_SECONDS)


RULES = (Rule(CAUSE, judge),)
