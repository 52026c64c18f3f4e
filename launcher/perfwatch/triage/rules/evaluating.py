"""The model runs, the optimizer does not: an evaluation, a validation epoch, a rollout."""

from perfwatch.triage.busy import WINDOW_SECONDS
from perfwatch.triage.cards.accelerated import sync_share
from perfwatch.triage.cards.gpu import polls
from perfwatch.triage.case import Case
from perfwatch.triage.moving.loops import COUNTED_LOOP, turning
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.calls import in_collective
from perfwatch.triage.ranks.lateness import only_receives, trains_without
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.collecting import PLAIN, collects
from perfwatch.triage.shares.leaving_early import may_leave_early, training_loop
from perfwatch.triage.shares.overlong import in_time
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.triage.shares.updating import clears, trains, without_gradients
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Culprit, Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("evaluating", "busy", "user_code", (Thread, Stack))

FORWARD_SHARE = 0.2  # of the samples that do not wait for the card ...
FEW_FORWARD = 6.0  # ... and so many: a training thread would have been seen at backward, too
# One that stays where gradients are switched off cannot make any: a model is to be seen at all. Between its passes it may decode for long.
MODEL_SHARE, MODEL_SAMPLES = 0.003, 1.0
FEW_SAMPLES = 30
LONGER_SECONDS = 20.0  # where it was looked at less often since
COUNTED = 0.88  # with the agent's count of steps; without it: PLAIN
# The source of the line was not read: it may stand in a loop that never ends. Or it does stand in one, and no step came for long.
UNREAD = 0.65
# By its text the loop trains, or it clears gradients: a flag may say that it evaluates, or it is left before backward.
TRAINS_TOO = 0.65
BEGINNING_SHARE = 0.1  # of samples in imports or the compiler: the first forward pass of a training is no evaluation


def judge(case: Case) -> Outcome:
    """Fires on a rank with forward passes and neither backward nor optimizer, or one that mostly steps its environment."""
    for rank in case.ranks:
        seen = _lately(case, rank)
        if seen.samples < FEW_SAMPLES or seen.share("compile", "import") > BEGINNING_SHARE:
            continue
        moving = (pid for pid, one in case.progress.items() if one.kind == "moving" and pid != rank.pid)
        if trains_without(case, rank) or (only_receives(case, rank, seen) and any(moving)):
            continue  # that is its part, and those that train go on meanwhile
        if turns_within(case.history, rank.pid, case.progress[rank.pid].thread) is not None or polls(
            case.history, rank.pid
        ):
            continue  # one forward pass, which may never end; or its card only waits for another rank
        chain = case.chains[rank.pid]
        if case.progress[rank.pid].kind == "still" and (len(chain.links) > 1 or in_collective(case, chain)):
            continue  # it does not run: another one holds what it needs to go on in its forward pass, or has not come to it
        if found := _evaluates(case, rank, seen) or collects(case, CAUSE, rank):
            return in_time(case, rank, found)
    return None


def _evaluates(case: Case, rank: Member, seen: Profile) -> Finding | None:
    steps = case.progress[rank.pid].steps
    if trains(seen):
        return None
    if steps is not None and steps.ago_seconds is not None and steps.ago_seconds < WINDOW_SECONDS:
        return None
    if not seen.seen("forward"):
        return None
    share = seen.share("forward", "loader")
    launching = 1.0 - sync_share(case, seen)  # who reads each result waits for the card most of the time
    environment = seen.share_where(in_environment(case.history, seen))
    forward = seen.share("forward") + environment
    enough, few = (
        (MODEL_SHARE, MODEL_SAMPLES) if without_gradients(case.history, seen) else (FORWARD_SHARE, FEW_FORWARD)
    )
    if forward < enough * launching or forward * seen.samples < few or len(seen.sights) < 4:
        return None
    line = show(seen.top_line())
    what = "a rollout" if environment else "an evaluation"
    return Finding(
        cause=CAUSE.name,
        state="busy",
        summary=f"the model runs without backward or optimizer steps: {what} at {line}",
        confidence=_certainty(case, rank, seen),
        owner=CAUSE.owner,
        culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "forward passes only",
                f"{share:.0%} of {seen.samples} samples, no backward, no optimizer",
                "backward in each step",
            ),
        ),
        alternatives=(
            Alternative(cause="skipping_steps", refuted_by="no guard is seen that leaves a loop that trains"),
        ),
    )


def _lately(case: Case, rank: Member) -> Profile:
    seen, longer = case.profile(rank, WINDOW_SECONDS), case.profile(rank, LONGER_SECONDS)
    return longer if seen.samples < FEW_SAMPLES or without_gradients(case.history, longer) else seen


def _certainty(case: Case, rank: Member, seen: Profile) -> float:
    if line_of(case.history, seen.top_line()) is None:
        return UNREAD
    if (loop := training_loop(case.history, seen)) is not None:
        return NOTED if may_leave_early(case, rank, loop) else TRAINS_TOO
    if seen.share_where(clears):
        return TRAINS_TOO
    steps, loops = case.steps(rank), turning(case.history, case.chains[rank.pid].start)
    ago = (steps.ago_seconds if steps is not None else None) or 0.0
    if "while" in loops and ago > COUNTED_LOOP * temporal(case):
        return UNREAD
    return PLAIN if steps is None else COUNTED


RULES = (Rule(CAUSE, judge),)
