"""Phases that come back between steps, and what they cost: measured over whole periods, and against the steps that are counted.

A window of any other length holds now one more of them, now one less, and what it seems to cost goes up and down with that.
"""

from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.moving.progress import LONGER, StepClock
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import TWICE
from perfwatch.triage.words.frames import any_tag, tags, user_frame
from perfwatch_probes.readings import Frame, Stack

LONG_SECONDS = 120.0  # in which phases of a quarter of a minute come back
STEP_TAGS = ("backward", "optimizer", "forward")


def recurrent(case: Case, rank: Member, seen: Profile, holds: Callable[[Stack], bool]) -> tuple[int, float]:
    """How often something came back between steps, and the share of whole periods that it takes; 0 where it did not come back."""
    phases = _separate(seen, holds)
    if len(phases) < TWICE:
        return len(phases), 0.0
    shares = (seen.share_where(holds), _whole_periods(seen, phases).share_where(holds))
    return len(phases), min(*shares, _share_of_long_steps(case, rank, len(phases)))


def is_at(frame: Frame | None, stack: Stack) -> bool:
    """Whether a stack is in the same function of the program's own as some frame."""
    own = user_frame(stack)
    return own is not None and frame is not None and (own.function, own.file) == (frame.function, frame.file)


def is_apart(case: Case, rank: Member, seen: Profile, holds: Callable[[Stack], bool]) -> bool:
    """Whether something comes between steps and is no part of each: it lasts for several of them, and steps are long as often."""
    steps = case.steps(rank, LONG_SECONDS)
    usual = (steps.median_seconds if steps is not None else None) or 0.0
    longest = max((one.reading.span_seconds for one in seen.sights if holds(one.reading)), default=0.0)
    if steps is None or not usual or longest < LONGER * usual:
        return False
    return len(_late(steps)) >= len(_separate(seen, holds)) - 1  # the last one may be under way


def _separate(seen: Profile, holds: Callable[[Stack], bool]) -> list[tuple[int, int]]:
    """The first and the last sample of each phase: one of training lies between two of them. One save may have many files."""
    found: list[tuple[int, int]] = []
    trained = True
    for number, one in enumerate(seen.sights):
        if holds(one.reading):
            first = number if trained else found[-1][0]
            found[len(found) - (not trained) :] = [(first, number)]
            trained = False
        elif any_tag(tags(one.reading), *STEP_TAGS):
            trained = True
    return found if seen.seen(*STEP_TAGS) else []


def _whole_periods(seen: Profile, stretches: list[tuple[int, int]]) -> Profile:
    """The samples from the begin of the first phase to that of the last, of two or more.

    Where the first was under way when it was first looked, from end to end.
    """
    (begin, end), (last_begin, last_end) = stretches[0], stretches[-1]
    whole = seen.sights[begin:last_begin]
    if begin == 0 and last_end < len(seen.sights) - 1:
        whole = seen.sights[end + 1 : last_end + 1]
    return Profile(whole, whole[-1].at - whole[0].at)


def _share_of_long_steps(case: Case, rank: Member, times_seen: int) -> float:
    """What long steps cost beyond the usual ones, from the first of them to the last: phases in between cost no more.

    Steps are counted all the time, samples are taken now and then: few of them hold now more of a phase, now less. 1 where the
    steps say nothing: none are counted, or a phase belongs to each.
    """
    steps = case.steps(rank, LONG_SECONDS)
    late = _late(steps) if steps is not None else []
    if steps is None or not late or len(late) < times_seen - 1:
        return 1.0
    # From end to end; where one of the phases is still under way, from begin to begin.
    begin, end = (late[0] + 1, late[-1] + 1) if len(late) >= times_seen else (late[0], len(steps.intervals))
    beyond = sum(steps.intervals[number] - (steps.median_seconds or 0.0) for number in late if begin <= number < end)
    return beyond / sum(steps.intervals[begin:end])


def _late(steps: StepClock) -> list[int]:
    """Which of the steps are long ones."""
    usual = steps.median_seconds or 0.0
    return [number for number, one in enumerate(steps.intervals) if usual and one >= LONGER * usual]
