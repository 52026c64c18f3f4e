"""When waiting for data is slow training, and when it is a preparation."""

import pytest

from perfwatch.probes.readings import Frame, Process, Stack, Steps
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.shares.starving import for_training
from tests.sessions import session

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
