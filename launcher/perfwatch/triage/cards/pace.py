"""How many steps a second a job makes, over stretches of its time: what any one step took says nothing of the next.

The count tells, not the intervals: of steps that take turns (three short ones, then one that waits for data) the middle interval
is far from what the job brings about, and of more steps than one look lists only the newest are known.
"""

from itertools import pairwise

from perfwatch.triage.history import History
from perfwatch.triage.moving.progress import WARM_UP_STEPS
from perfwatch_probes.readings import Steps

STRETCH_SECONDS, STRETCH_STEPS = 1.0, 10  # at least, of each
WARM_UP_SECONDS = 2.0  # after the first step: the next ones still allocate, compile and tune
FEW_STEPS = 5


def paces(history: History, pid: int, seconds: float) -> list[float]:
    """Steps a second of each stretch of the last ``seconds``, oldest first; of few steps, of all of them together. Empty for none.

    Where several optimizers take turns a turn is what counts as a step; empty where how many belong together is not known.
    """
    turn = steps_each_turn(history, pid)
    return [pace / turn for pace in _steps(history, pid, seconds)] if turn else []


def steps_each_turn(history: History, pid: int) -> float | None:
    """How many steps several optimizers make together, 1 for one; None where so many take turns that nobody can see it."""
    newest = history.latest(Steps, pid)
    return newest.reading.steps_each_turn if newest is not None else 1.0


def _steps(history: History, pid: int, seconds: float) -> list[float]:
    marks = _warm(_marks(history, pid, seconds))
    if len(marks) < 2:
        return []
    found, begin = [], marks[0]
    for mark in marks[1:]:
        if mark[0] - begin[0] >= STRETCH_STEPS and mark[1] - begin[1] >= STRETCH_SECONDS:
            found.append(_pace(begin, mark))
            begin = mark
    whole = marks[-1][0] - marks[0][0] >= FEW_STEPS and marks[-1][1] > marks[0][1]
    return found or ([_pace(marks[0], marks[-1])] if whole else [])


def _pace(begin: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[0] - begin[0]) / (end[1] - begin[1])


def _marks(history: History, pid: int, seconds: float) -> list[tuple[int, float]]:
    """(count, when it was reached) of every step that was told, in order."""
    at: dict[int, float] = {}
    for one in history.series(Steps, pid, seconds=seconds):
        if one.reading.step_ago_seconds is None:
            continue
        when, count = one.at - one.reading.step_ago_seconds, one.reading.count
        at.setdefault(count, when)
        for back, interval in enumerate(reversed(one.reading.interval_seconds), 1):
            when -= interval
            at.setdefault(count - back, when)
    marks = sorted(at.items())
    return [later for earlier, later in pairwise([(0, float("-inf")), *marks]) if later[1] > earlier[1]]


def _warm(marks: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Without the warm-up, where the beginning of the run is among them: its first steps, a tenth of them all at most, and seconds."""
    if not marks or marks[0][0] > WARM_UP_STEPS:
        return marks
    steps = min(WARM_UP_STEPS, len(marks) // 10)
    late = [mark for mark in marks[steps:] if mark[1] - marks[0][1] >= WARM_UP_SECONDS]
    return late if len(late) > FEW_STEPS else marks[steps:]
