"""When the agent's count of steps may be trusted: not where steps go on inside a graph that is replayed."""

from perfwatch.probes.readings import Frame, Stack, Steps
from perfwatch.triage.history import History
from perfwatch.triage.progress import step_clock

REPLAYS = (Frame("replay", "/lib/torch/cuda/graphs.py", 140), Frame("train", "/app/train.py", 7))
WAITS = (Frame("train", "/app/train.py", 9),)
PID = 7


def watched(counted_until: float, replayed: tuple[float, float], seconds: float = 60.0) -> History:
    """A rank that makes ten steps a second until some moment, and is seen in replays between two moments."""
    history = History(at=seconds)
    for second in range(1, int(seconds) + 1):
        count = int(10 * min(float(second), counted_until))
        ago = max(0.0, second - counted_until)
        history.add(second, Steps(pid=PID, tid=PID, count=count, step_ago_seconds=ago, interval_seconds=(0.1,)))
        frames = REPLAYS if replayed[0] <= second <= replayed[1] else WAITS
        history.add(second, Stack(pid=PID, tid=PID, frames=frames, samples=4, span_seconds=0.2))
    return history


def test_steps_inside_a_graph_are_not_counted_so_that_the_count_says_nothing() -> None:
    """Counted while the graph was captured, replayed since."""
    assert step_clock(watched(counted_until=3.0, replayed=(5.0, 60.0)), PID) is None


def test_a_loop_that_counts_its_steps_between_replays_has_a_clock_when_it_stops() -> None:
    """Its forward pass is a graph: nothing was replayed since its last step."""
    clock = step_clock(watched(counted_until=40.0, replayed=(5.0, 40.0)), PID)

    assert clock is not None
    assert clock.ago_seconds == 20.0


def test_a_loop_that_goes_on_to_replay_but_makes_no_step_any_more_has_a_clock() -> None:
    """A gradient scaler may skip each step: that is what the clock is there to tell."""
    clock = step_clock(watched(counted_until=40.0, replayed=(5.0, 60.0)), PID)

    assert clock is not None
    assert clock.ago_seconds == 20.0


def test_how_long_a_step_takes_now_is_told_by_the_newest_steps() -> None:
    """Steps of a hundredth of a second for most of a minute, and of a second in the last twelve."""
    history = History(at=60.0)
    history.add(48.0, Steps(pid=PID, tid=PID, count=4800, step_ago_seconds=0.0, interval_seconds=(0.01,) * 4800))
    history.add(60.0, Steps(pid=PID, tid=PID, count=4812, step_ago_seconds=0.0, interval_seconds=(1.0,) * 12))
    clock = step_clock(history, PID)

    assert clock is not None
    assert (clock.median_seconds, clock.newest_seconds) == (0.01, 1.0)
