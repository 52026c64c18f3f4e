"""When the agent's count of steps may be trusted: not where steps go on inside a graph that is replayed."""

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.progress import step_clock
from perfwatch.triage.patience import LONGEST_RECOVERED, temporal
from perfwatch.triage.rules import straggling_rank
from perfwatch_probes.readings import Frame, Stack, Steps
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, Training
from tests.training import PID as PID_OF_TRAINING

REPLAYS = (Frame("replay", "/lib/torch/cuda/graphs.py", 140), Frame("train", "/app/train.py", 7))
WAITS = (Frame("train", "/app/train.py", 9),)
PID = 7
EACH = (0.5,) * 20


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


def test_a_rank_is_not_last_again_and_again_in_a_phase_that_takes_a_minute_after_a_longer_one() -> None:
    """The second evaluation in one rank, of a hundred seconds as the first: steps stand still for far longer than they took lately."""
    case = RECORDINGS / "straggling_rank" / "fires" / "straggling_rank"
    at, whole = expected_of(case).at, load_case(case)
    stepping, evaluating = History(), History()
    for one in whole.until(at).records:
        stepping.add(one.at, one.reading)
        evaluating.add(one.at, one.reading)
    for rank in Case(stepping, whole.session).job.ranks:
        last = Steps(pid=rank.pid, tid=rank.pid, count=540, interval_seconds=EACH, longest_seconds=100.0)
        evaluating.add(0.0, structs.replace(last, count=500))
        evaluating.add(at - 1.0, structs.replace(last, step_ago_seconds=60.0))
    stepping.at = evaluating.at = at

    assert straggling_rank.judge(Case(stepping, whole.session)) is not None
    assert straggling_rank.judge(Case(evaluating, whole.session)) is None


@pytest.mark.parametrize("length", [90.0, 300.0])
def test_a_step_over_many_backward_passes_is_no_missing_one_however_long_it_takes(length: float) -> None:
    """Gradients are accumulated: when the next step is due, the last one is older than any window of time."""
    job = Training(card=False)
    job.add(
        Steps(pid=PID_OF_TRAINING, tid=PID_OF_TRAINING, count=6, step_ago_seconds=0.0, interval_seconds=(length,) * 5)
    )
    job.history.at = length - 30.0
    for second in range(29):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(6, ago=length - 29.0 + second)

    case = job.case()
    verdict = job.verdict()

    assert verdict.state == "healthy"
    assert temporal(case) == LONGEST_RECOVERED * length


def test_a_round_of_rollouts_before_the_steps_of_each_window_is_not_taken_for_a_warm_up() -> None:
    """Steps of a tenth of a second for ten seconds, then forty without one, again and again: no step is overdue in those."""
    history = History(at=185.0)
    for second in range(20, 186):
        into = (second - 20) % 50
        intervals = (40.0, *(0.1,) * 9) if into == 40 and second > 60 else (0.1,) * 10 if into >= 40 else ()
        count = 100 * ((second - 20) // 50) + 10 * max(0, into - 39)
        history.add(
            second,
            Steps(
                pid=PID,
                tid=PID,
                count=count,
                step_ago_seconds=float(max(0, into + 1 if into < 40 else 0)),
                interval_seconds=intervals,
            ),
        )
    clock = step_clock(history, PID)

    assert clock is not None
    assert clock.longest_seconds == 40.0
    assert not clock.is_overdue(3.0, 2.5)


def test_the_first_steps_of_a_process_are_a_warm_up_and_later_ones_are_none() -> None:
    """Whoever looks from the begin on does not take a compilation for the usual step."""
    begun, later = History(at=60.0), History(at=60.0)
    slow_first = (30.0, *(0.1,) * 99)
    begun.add(60.0, Steps(pid=PID, tid=PID, count=101, step_ago_seconds=0.0, interval_seconds=slow_first))
    later.add(60.0, Steps(pid=PID, tid=PID, count=501, step_ago_seconds=0.0, interval_seconds=slow_first))
    clocks = step_clock(begun, PID), step_clock(later, PID)

    assert [clock.longest_seconds for clock in clocks if clock is not None] == [0.1, 30.0]


def test_of_more_steps_than_one_look_lists_the_longest_is_known() -> None:
    """A look lists sixty-four; a long one among those before them was told as the longest."""
    history = History(at=60.0)
    for at, count in ((30.0, 1000), (60.0, 1300)):
        history.add(
            at,
            Steps(
                pid=PID, tid=PID, count=count, step_ago_seconds=0.0, interval_seconds=(0.1,) * 64, longest_seconds=9.0
            ),
        )
    clock = step_clock(history, PID)

    assert clock is not None
    assert clock.longest_seconds == 9.0
