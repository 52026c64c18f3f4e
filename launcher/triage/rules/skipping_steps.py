"""The loop turns, the optimizer does not.

What it means
    Every step's update is thrown away: a GradScaler that overflows, or a guard against NaN. The run burns its allocation and learns
    nothing.

How it is recognised
    Backward passes go on and no optimizer step is made: the agent's count stands still, or the scaler's and the guard's frames are
    seen and the optimizer's never.

What it is mistaken for
    ``evaluating``: no backward either. Gradient accumulation: a step comes after some backward passes.

What to do next
    Look at the loss: it is NaN or infinite. Lower the learning rate, or look for the first bad batch.
"""

from perfwatch.probes.readings import Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import tags
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import WINDOW_SECONDS, slow
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("skipping_steps", "slow", "user_code", (Stack,))

FEW_SAMPLES = 60
BACKWARD_SHARE = 0.05
BACKWARD_TURNS = 8  # separate backward passes without one optimizer step; accumulation over more is rare
COUNTED = 0.9
SEEN_ONLY = 0.75


def judge(case: Case) -> Outcome:
    """Fires on backward passes without an optimizer step."""
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        if seen.samples < FEW_SAMPLES or seen.share("backward") < BACKWARD_SHARE:
            continue
        turns = seen.turns(lambda stack: "backward" in tags(stack))
        steps = case.steps(rank)
        stuck = steps is not None and (steps.ago_seconds is None or steps.ago_seconds > 5.0)
        unseen = steps is None and seen.share_where(updates) == 0.0
        if turns < BACKWARD_TURNS or not (stuck or unseen):
            continue
        return slow(
            case,
            CAUSE,
            rank,
            lost=1.0,
            confidence=COUNTED if stuck or seen.seen("scaler") else SEEN_ONLY,
            frame=seen.top_line(lambda stack: "backward" in tags(stack)),
            summary=f"the loop turns but the optimizer makes no step: {turns} or more backward passes in {seen.seconds:.0f} s, no update",
            evidence=(
                case.saw(
                    "stack",
                    f"pid {rank.pid}",
                    "backward without an optimizer step",
                    f"{turns} passes, 0 optimizer samples of {seen.samples}",
                    "one step per pass",
                ),
                *(
                    (case.saw("steps", f"pid {rank.pid}", "the count stands still", f"{steps.count} steps", "grows"),)
                    if steps is not None
                    else ()
                ),
            ),
            alternatives=(Alternative(cause="evaluating", refuted_by="backward passes run"),),
            next=("look at the loss: it is NaN or infinite", "lower the learning rate, or find the first bad batch"),
        )
    return None


def updates(stack: Stack) -> bool:
    """Whether a stack is in an optimizer's update, not merely in zero_grad."""
    names = {
        frame.function.rsplit(".", 1)[-1]
        for frame in stack.frames
        if "optimizer" in tags(Stack(pid=0, tid=0, frames=(frame,)))
    }
    return bool(names - {"zero_grad"})
