"""Torch.compile comes back in the middle of training."""

from perfwatch.triage.cards.accelerated import since_first_step
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.in_compiler import passed_before, returns, steps_around, untorn
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import certainty, slow, worst
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack

CAUSE = Cause("recompiling", "slow", "user_code", (Stack,))

COMES_BACK = 2
ONCE_SEEN = 0.79  # it came back once before our eyes: of several models each may be compiled for the first time


def judge(case: Case) -> Outcome:
    """Fires when the compiler comes back between steps."""
    found = worst(case, lambda rank, seen: _trained(case, rank, seen).share_where(compiles))
    if found is None:
        return None
    rank, whole, lost = found
    seen = _trained(case, rank, whole)
    steps = case.steps(rank)
    stretches = len(seen.runs(compiles))
    advanced = steps.advanced > 0 if steps is not None else stepped(seen)
    if stretches < COMES_BACK or not (advanced or came_back(case, rank, seen)):
        return None
    frame = seen.top_line(compiles)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        confidence=certainty(lost) if advanced else min(certainty(lost), ONCE_SEEN),
        frame=frame,
        summary=f"torch.compile compiles again and again: {lost:.0%} of the training thread's time, "
        f"{stretches} times in {seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "the compiler comes back",
                f"{stretches} stretches, {lost:.0%} of {seen.samples} samples",
                "once, at the start",
            ),
        ),
        alternatives=(Alternative(cause="compiling", refuted_by="steps were made in between"),),
        next=("TORCH_LOGS=recompiles", "torch.compile(dynamic=True), mark_dynamic, or padded shapes"),
    )


def _trained(case: Case, rank: Member, seen: Profile) -> Profile:
    """The samples since the first step; all of them where a pass is known to have been made before."""
    begun = seen.sights[0].at - seen.sights[0].reading.span_seconds if seen.sights else 0.0
    return seen if passed_before(case.history, rank.pid, begun) else since_first_step(case, rank, seen)


def came_back(case: Case, rank: Member, seen: Profile) -> bool:
    """Whether it did so where nobody counts steps, and they take longer than one looks: in a loop that makes them."""
    if case.steps(rank) is not None or returns(case.history, seen) < COMES_BACK:
        return False
    return seen.seen("optimizer") or bool(steps_around(case.history, seen))


def compiles(stack: Stack) -> bool:
    """Whether a stack is inside the compiler, not merely inside a compiled function's wrapper."""
    return "compile" in tags(stack)


def stepped(seen: Profile) -> bool:
    """Whether steps were made between compilations."""
    return (
        untorn(seen).turns(lambda stack: not tags(stack).isdisjoint({"backward", "optimizer"}) and not compiles(stack))
        >= COMES_BACK
    )


RULES = (Rule(CAUSE, judge),)
