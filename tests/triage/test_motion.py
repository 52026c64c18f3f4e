"""Whether a thread stands still, by what the kernel remembers and by its stacks."""

import pytest

from perfwatch.probes.readings import Frame, Stack, Thread
from perfwatch.triage.history import History
from perfwatch.triage.motion import motion

WAITS = (Frame("backward", "/lib/torch/autograd/graph.py", 10), Frame("train", "/app/train.py", 7))
ARRIVES = (Frame("forward", "/lib/torch/nn/modules/linear.py", 5), Frame("train", "/app/train.py", 6))


@pytest.mark.parametrize(("ended_at", "stands"), [(2.1, True), (2.3, False)])
def test_samples_from_before_it_came_to_rest_do_not_speak_against_that(ended_at: float, stands: bool) -> None:
    """It last ran at 2.0 s, and 0.2 s of samples that ended a little later began while it was on its way."""
    history = History(at=10.0)
    for at in (7.0, 8.5, 10.0):
        history.add(
            at,
            Thread(
                pid=7,
                tid=7,
                name="python",
                state="S",
                cpu_seconds=4.0,
                run_seconds=4.0,
                voluntary_switches=50,
                ran_ago_seconds=at - 2.0,
            ),
        )
    history.add(ended_at, Stack(pid=7, tid=7, frames=ARRIVES, samples=20, span_seconds=0.2))
    for at in (3.0, 9.9):
        history.add(at, Stack(pid=7, tid=7, frames=WAITS, samples=20, span_seconds=0.5))

    assert motion(history, 7, 7).frozen is stands
