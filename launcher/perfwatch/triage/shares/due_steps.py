"""How sure it is that a step of the optimizer is due where backward passes are made: the confidence that none is."""

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import was_at
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.passes import alike, of_steps
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.updating import (
    PASSES,
    accompanies,
    at_a_pass,
    clears_only,
    looks_at_gradients,
    steps_an_optimizer,
)
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import any_tag, tags, user_frame, user_frames
from perfwatch_probes.readings import Stack

FEW_STEPS = 3  # before so many, or where none was timed, nobody knows how long one takes
COUNTED, SAMPLED, NO_ROOM = 0.92, 0.85, 0.78
UNTOLD = 0.7  # nobody saw at which lines the passes of the steps were that were made
ONE_ELSEWHERE = 2.5  # samples of a step that are due: beside so many one sample elsewhere is no update


def sampled(case: Case, rank: Member, seen: Profile, beside: float) -> float:
    """How sure it is that a step is due where none is counted.

    Only who has an optimizer of torch leaves it out: it was seen, or its ``step`` stands in the loop that makes the passes
    and nothing is done there beside these and what goes with them, where an update of the program's own would be.
    """
    if was_at(case.history, rank.pid, case.progress[rank.pid].thread, "optimizer", "scaler"):
        trains = of_steps(case, rank)
        return SAMPLED if not trains or alike(seen, trains) else NOTED
    lines = {user_frame(one.reading) for one in seen.sights if any_tag(tags(one.reading), *PASSES)}
    lines |= {frame for one in seen.sights if clears_only(line_of(case.history, frame := user_frame(one.reading)))}
    elsewhere = seen.share_where(
        lambda stack: (
            not accompanies(stack) and not looks_at_gradients(case.history, stack) and not at_a_pass(lines, stack)
        )
    )
    around = {frame for one in _passes(seen) for frame in user_frames(one.reading)}
    due = any(steps_an_optimizer(line_of(case.history, frame)) for frame in around)
    return NO_ROOM if due and round(elsewhere * seen.samples) <= beside // ONE_ELSEWHERE else NOTED


def counted(case: Case, rank: Member, seen: Profile, count: int) -> float:
    """How sure a resting count is: the passes of now must be those that made steps before."""
    trains = of_steps(case, rank)
    if not trains:
        return UNTOLD if count >= FEW_STEPS else NOTED
    return COUNTED if alike(seen, trains) else NOTED


def _passes(seen: Profile) -> list[Seen[Stack]]:
    return [one for one in seen.sights if "backward" in tags(one.reading)]
