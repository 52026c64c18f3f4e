"""Whether a thread stands still, by what the kernel remembers and by its stacks."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion, moves
from perfwatch_probes.readings import Frame, Stack, Thread, Wait

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


@pytest.mark.parametrize(("run_ms_per_look", "times"), [(15.8, 0), (40.0, 9)])
@pytest.mark.parametrize("met_running", [0, 3, 2])
def test_who_asks_for_the_gil_in_vain_does_not_move(run_ms_per_look: float, times: int, met_running: int) -> None:
    """On a slow machine each of its 200 looks a second costs 0.14 ms; a thread that gets its turn runs for longer.

    Each so many-th time it is met on a CPU, between two such waits.
    """
    history = History(at=7.0)
    for look in range(10):
        at = 0.6 * (look + 1)
        waits = Wait(call="futex", number=202, kind="futex", forever=False, remaining_seconds=0.003)
        runs = bool(met_running) and look % met_running == 0
        history.add(at, Thread(pid=7, tid=7, name="python", state="R" if runs else "S", cpu_seconds=0.0,
                               wait=None if runs else waits, voluntary_switches=114 * look,
                               run_seconds=look * run_ms_per_look / 1e3, ran_ago_seconds=0.003))  # fmt: skip

    assert moves(history, 7, 7).times == times
