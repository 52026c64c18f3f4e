"""The training thread prepares its own data."""

from collections.abc import Callable
from functools import partial

from perfwatch.triage.cards.accelerated import since_first_step
from perfwatch.triage.case import Case
from perfwatch.triage.moving.memory import computed
from perfwatch.triage.moving.periods import is_apart, is_in, recurrent
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.gathering import STEPS, makes_batches
from perfwatch.triage.shares.loading_doubts import MOSTLY, loading_ceiling
from perfwatch.triage.shares.native import native_python_share
from perfwatch.triage.shares.other_work import NATIVE_SHARE, OWN_SHARE, does_other_work, keeps_gil, shown
from perfwatch.triage.shares.own_work import awaits_a_program, fetches, fetches_itself, own_python, takes_a_lock
from perfwatch.triage.shares.profile import in_own_sampler
from perfwatch.triage.shares.rollouts import in_rollout
from perfwatch.triage.slowness import FEW_SAMPLES, certainty, slow, working, worst
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Frame, Stack

CAUSE = Cause("serial_loading", "slow", "data", (Stack,))

PYTHON_SHARE = 0.15  # of samples that are plainly Python or a data library
RESIDUE = 0.5  # own work is what no other rule knows: one that explains half as much is the better answer
# What it does, why nobody else does it, where it stands, what helps.
FETCHES = (
    "prepares its own data", "no worker does it", "is inside the loader's fetch",
    "DataLoader(num_workers=4) moves this out of the training thread",
)  # fmt: skip
DRAWS = (
    "draws its batches", "a sampler runs in no worker", "is inside its loader's sampler",
    "draw many batches at once, ahead of the epoch, or make the sampler cheaper: workers do not help",
)  # fmt: skip
OWN_CONFIDENCE = 0.75  # data or not, it is the training thread's own work; that it is data is inferred


def judge(case: Case) -> Outcome:
    """Fires when the training thread spends its time in the loader's fetch or sampler, or in Python of its own between steps."""
    found = worst(case, partial(makes_batches, case))
    if found is None:
        return _own(case)
    rank, seen, lost = found
    if seen.share_where(lambda stack: fetches(stack) and takes_a_lock(case.history, stack)) >= MOSTLY * lost:
        return None  # it is kept from its data by who has that lock
    draws = seen.seen(*STEPS) and seen.share_where(in_own_sampler) >= MOSTLY * lost
    own = in_own_sampler if draws else fetches_itself
    frame = seen.top_line(own if seen.share_where(own) >= MOSTLY * lost else fetches)
    does, why, stands, advice = DRAWS if draws else FETCHES
    saw = case.saw("stack", f"pid {rank.pid}", stands, f"{lost:.0%} of {seen.samples} samples", "hardly ever")
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(certainty(lost), loading_ceiling(case, rank, lost)),
        summary=f"the training thread {does} {lost:.0%} of the time, mostly at {show(frame)}: {why}",
        evidence=(saw,),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="the training thread does it itself"),),
        next=(advice,),
    )


def _own(case: Case) -> Outcome:
    for rank, whole in working(case):
        seen = since_first_step(case, rank, whole)
        works = partial(_makes_no_experience, case, in_rollout(case.history, seen))
        python = seen.share_where(lambda stack: own_python(case.history, stack) or awaits_a_program(stack))
        native = native_python_share(case, rank)
        if (now := case.progress[rank.pid]).kind == "busy" and now.steps is not None:
            continue  # steps are late: one long phase is no part of each step
        kept = keeps_gil(whole, partial(does_other_work, case)) if native is None else native >= NATIVE_SHARE
        plain = python >= PYTHON_SHARE or kept
        frame = seen.top_line(works)
        apart = is_apart(case, rank, seen, phase := partial(_works_in, frame, works))
        lost = min(seen.share_where(works), recurrent(case, rank, seen, phase)[1] if apart else 1.0)
        if (
            seen.samples < FEW_SAMPLES
            or lost < OWN_SHARE
            or not plain
            or not (seen.seen(*STEPS) or computed(case, rank))
        ):
            continue
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            explains=RESIDUE * lost,
            frame=frame,
            confidence=OWN_CONFIDENCE,
            summary=f"the training thread does other work than training {lost:.0%} of the time, mostly at {show(frame)}"
            + (", which comes between steps again and again" if apart else ": no worker does it"),
            evidence=shown(case, rank, seen, lost, native),
            alternatives=(Alternative(cause="starved_by_transforms", refuted_by="it waits for no worker"),),
            next=(
                f"do {show(frame)} less often, once ahead of training, or in a process of its own meanwhile"
                if apart
                else f"if {show(frame)} makes data, move it to DataLoader workers or ahead of training; if not, do it less often",
            ),
        )
    return None


def _makes_no_experience(case: Case, makes_experience: Callable[[Stack], bool], stack: Stack) -> bool:
    return does_other_work(case, stack) and not makes_experience(stack)


def _works_in(frame: Frame | None, works: Callable[[Stack], bool], stack: Stack) -> bool:
    return is_in(frame, stack) and works(stack)


RULES = (Rule(CAUSE, judge),)
