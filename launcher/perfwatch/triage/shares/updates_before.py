"""Whether updates that were seen among the backward passes are seen no more, though the same lines make passes as before.

Counted in samples of passes from one update to the next: gradients may be accumulated over many of them, and a calm job is
looked at now and then. A loop that accumulates may do so over ever more of them: its updates alone prove nothing.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.passes import alike, between, of_steps
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.updating import beside_a_step, updates
from perfwatch.triage.words.code import asks_for_an_update, line_of
from perfwatch.triage.words.frames import tags, user_frames
from perfwatch_probes.readings import COUNT, SourceLine, Stack

FEW_UPDATES = 5  # times that one was met
LONGER = 2.5  # times the most passes that were ever met from one update to the next
MOSTLY = 0.5  # of the passes
DUE = 5.0  # samples of updates, by their share before: none of so many is met by chance with e**-5


def updates_vanished(case: Case, rank: Member) -> bool:
    """Whether many updates were met, and none among so many passes since that several are due."""
    sights = case.profile(rank).sights
    *before, since = between(sights, updates)
    runs = [count for run in before if (count := _passes(case.history, run))]
    now = _passes(case.history, since)
    if len(runs) < FEW_UPDATES or now <= LONGER * max(runs):
        return False
    met = sum(one.reading.samples for one in sights if updates(one.reading))
    return now * met >= DUE * sum(runs) and alike(Profile(tuple(since), 0.0), of_steps(case, rank))


def due(case: Case, rank: Member, seen: Profile) -> float:
    """How many samples of a step are due, by those of what goes with each, as often as it was met beside that before."""
    sights, now = case.profile(rank).sights, beside_a_step(case.history, seen)
    last = max((number for number, one in enumerate(sights, 1) if updates(one.reading)), default=0)
    met = sum(one.reading.samples for one in sights[:last] if updates(one.reading))
    before = beside_a_step(case.history, Profile(sights[:last], 0.0))
    return now * min(1.0, met / before) if met >= FEW_UPDATES and before else now


def accumulates(history: History, seen: Profile) -> bool:
    """Whether by its text the loop that makes most of the passes makes a step only after a number of them, which may grow."""
    passes = [one.reading for one in seen.sights if "backward" in tags(one.reading)]
    counting = sum(stack.samples for stack in passes if _counts_passes(_around(history, stack)))
    return counting > MOSTLY * sum(stack.samples for stack in passes)


def _around(history: History, stack: Stack) -> list[SourceLine]:
    """The lines of the program around a pass that stand in a loop, innermost first."""
    return [line for frame in user_frames(stack) if (line := line_of(history, frame)) is not None and line.loops]


def _counts_passes(around: list[SourceLine]) -> bool:
    """Whether the innermost loop around a pass tests a count before its step, or is one in a loop that makes the step."""
    if not around:
        return False
    within = len(around) > 1 or len(around[0].loops) > 1
    return COUNT in around[0].steps_if or (within and not asks_for_an_update(around[0].loop_calls))


def _passes(history: History, run: list[Seen[Stack]]) -> int:
    return sum(one.reading.samples for one in run if _makes_gradients(history, one.reading))


def _makes_gradients(history: History, stack: Stack) -> bool:
    """Whether a stack makes gradients, and not for an update of the program's own, which searches for as long as it likes."""
    if "backward" not in tags(stack):
        return False
    lines = (line_of(history, frame) for frame in user_frames(stack))
    return not any(asks_for_an_update(line.calls) for line in lines if line is not None)
