"""When waiting for data is slow training, and when it is a preparation."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.shares.starving import for_training
from perfwatch_probes.readings import Frame, Process, SourceLine, Stack, Steps
from tests.sessions import session
from tests.training import FORWARD, TRAIN, Training

WAITS = (
    Frame("result", "/usr/lib/python3.12/concurrent/futures/_base.py", 451),
    Frame("prepare", "/app/train.py", 21),
)


@pytest.mark.parametrize(
    ("ago", "longest", "trains"),
    [
        (0.4, 0.5, True),
        (13.0, 0.001, False),  # it made steps before, and makes none now
        (13.0, 9.0, True),  # steps as long as that
    ],
)
def test_a_pool_is_waited_for_by_training_only_while_steps_are_made(ago: float, longest: float, trains: bool) -> None:
    """By the agent's count."""
    history = History(at=30.0)
    history.add(
        0.0, Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True)
    )
    history.add(30.0, Steps(pid=7, tid=7, count=20, step_ago_seconds=ago, interval_seconds=(longest,) * 9))
    for at in (20.0, 25.0, 30.0):
        history.add(at, Stack(pid=7, tid=7, frames=WAITS, samples=20, span_seconds=1.0))
    case = Case(history, session(root_pids=(7,)))

    assert for_training(case, case.ranks[0], case.profile(case.ranks[0], 20.0)) is trains


INNER, OUTER = Frame("table", TRAIN, 18), Frame("train", TRAIN, 44)
TRAINS = ("table", "loss.backward", "optimizer.step")


@pytest.mark.parametrize(
    ("loops", "hands_out", "seconds", "beside", "expected"),
    [
        (("for",), False, 20.0, (), False),  # results are gathered between two steps
        (("for",), False, 8.0, (), None),  # so it seems, and it may be one long step
        (("for",), False, 20.0, (FORWARD,), True),  # it is a part of each
        (("for",), False, 20.0, ((OUTER,),), True),  # it was left, and entered anew
        (("for",), True, 20.0, (), True),  # a generator: the loop that asks it for more trains
        ((), False, 20.0, (), True),  # one result for each turn of the loop that trains
    ],
)
def test_a_loop_over_a_pools_results_that_makes_no_step_is_a_phase_when_it_lasts(
    loops: tuple[str, ...],
    hands_out: bool,
    seconds: float,
    beside: tuple[tuple[Frame, ...], ...],
    expected: bool | None,
) -> None:
    """A table is built by a pool every so many steps, in a function that the training loop calls."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=18, text="for s in results:", loops=loops, hands_out=hands_out))
    job.add(SourceLine(file=TRAIN, line=44, text="t = table()", loops=("for",), loop_calls=TRAINS))
    case = job.goes_on(seconds, [*[(WAITS[0], INNER, OUTER)] * 4, *beside]).case()

    assert for_training(case, case.ranks[0], case.profile(case.ranks[0], 20.0)) is expected
