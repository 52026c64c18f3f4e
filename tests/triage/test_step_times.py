"""Step times: when the agent's count can be trusted, how long a step may take, and when steps have become slower."""

import random
from collections.abc import Sequence

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Socket, SourceLine, Steps, Wait
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, Training
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    runs,
    stands,
)

PATIENCE_SECONDS = 60.0  # of the sessions here
STEPS = [FORWARD, BACKWARD, OPTIMIZER]
REPLAYS = (Frame("replay", TORCH + "cuda/graphs.py", 140), Frame("train", TRAIN, 7))
WAITS = (Frame("train", TRAIN, 9),)


def stuck_after(counted_until: float, replayed_until: float) -> Verdict:
    """A rank that makes ten steps a second until a moment, replays a graph until another, and then waits for a lock until 60 s."""
    history = job(1, trained=False)
    runs(history, FIRST, (REPLAYS,), 0.0, replayed_until)
    stands(history, FIRST, WAITS, FOR_EVER, 60.0, since=replayed_until)
    for second in range(1, 61):
        count, ago = int(10 * min(float(second), counted_until)), max(0.0, second - counted_until)
        counted = Steps(pid=FIRST, tid=FIRST, count=count, step_ago_seconds=ago, interval_seconds=(0.1,))
        history.add(second, counted)
    return judged(history, 60.0)


@pytest.mark.parametrize(
    ("counted_until", "replayed_until", "last_step"),
    [
        (3.0, 40.0, []),  # counted while the graph was captured: its steps go on uncounted
        (40.0, 40.0, ["last step 400 was 20 s ago"]),  # its forward pass is a graph, counted between replays
        (40.0, 60.0, ["last step 400 was 20 s ago"]),  # it replays and makes no step any more
    ],
)
def test_a_count_of_steps_is_evidence_unless_they_go_on_inside_a_graph(
    counted_until: float, replayed_until: float, last_step: list[str]
) -> None:
    """A graph that is captured with its optimizer makes steps that no agent sees."""
    verdict = stuck_after(counted_until, replayed_until)

    assert [one.observed for one in verdict.evidence if one.witness == "steps"] == last_step


@pytest.mark.parametrize(("counted_until", "state"), [(3.0, "healthy"), (40.0, "inconclusive")])
def test_a_card_at_work_in_replays_trains_unless_steps_were_counted_between_them(
    counted_until: float, state: str
) -> None:
    """A gradient scaler may skip each step: that is what the count is there to tell."""
    job = Training()
    for second in range(1, 61):
        count, ago = int(10 * min(float(second), counted_until)), max(0.0, second - counted_until)
        job.goes_on(1.0, [REPLAYS], load="bf16_matmul").steps(count, 0.1, ago=ago)

    assert job.verdict().state == state


def test_the_newest_steps_tell_how_long_a_step_takes_now() -> None:
    """Steps of a hundredth of a second for most of a minute, and of a second in the last twelve."""
    job = Training(card=False).goes_on(48.0, STEPS).steps(4800, *[0.01] * 4800)
    verdict = job.goes_on(12.0, STEPS).steps(4812, *[1.0] * 12).verdict()

    assert verdict.cause == "cpu_training"
    assert "one step every 1.00 s" in verdict.summary


ANSWER = Wait(call="recvfrom", number=45, kind="network", fd=4, forever=True)
ASKS: Frames = (Frame("recv_into", LIB + "socket.py", 700), Frame("train", TRAIN, 9), MODULE)
ASKED, SILENT_SECONDS = 60.0, 20.0


def decides_in(*counted: tuple[float, Steps]) -> float:
    """Seconds until a rank that has waited 20 s for a server, after a minute of steps, is called hung."""
    history, until = job(1, trained=False), ASKED + SILENT_SECONDS
    runs(history, FIRST, STEP, 20.0, ASKED)
    for at, steps in counted:
        history.add(at, steps)
    stands(history, FIRST, ASKS, ANSWER, until, since=ASKED)
    for at in looks(ASKED, until):
        socket = Socket(family="tcp", state="ESTABLISHED", local="10.0.0.1:5", peer="10.0.0.9:443", received_bytes=0,
                        received_ago_seconds=at - ASKED, sent_bytes=111)  # fmt: skip
        history.add(at, Descriptor(pid=FIRST, fd=4, kind="socket", target="socket:[4]", inode=4, socket=socket))
    verdict = judged(history, until)
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "blocked_network"
    return verdict.suspect.decides_in_seconds


def made(count: int, *intervals: float, longest_seconds: float | None = None, ago: float = 0.0) -> Steps:
    """What the agent counted."""
    return Steps(pid=FIRST, tid=FIRST, count=count, step_ago_seconds=ago, interval_seconds=intervals,
                 longest_seconds=longest_seconds)  # fmt: skip


@pytest.mark.parametrize(
    ("counted", "longest_seconds"),
    [
        ([(60.0, made(101, 30.0, *[0.1] * 99))], 0.1),  # the first steps of a process are a warm-up
        ([(60.0, made(501, 30.0, *[0.1] * 99))], 30.0),  # later ones are none
        # A look lists 64 steps; a long one among those before them is reported as the longest.
        ([(at, made(count, *[0.1] * 64, longest_seconds=25.0)) for at, count in ((30.0, 1000), (60.0, 1300))], 25.0),
    ],
)
def test_a_hang_is_three_times_as_long_as_the_longest_step(
    counted: list[tuple[float, Steps]], longest_seconds: float
) -> None:
    """And no shorter than the hang timeout."""
    expected = max(PATIENCE_SECONDS, 3 * longest_seconds) - SILENT_SECONDS

    assert decides_in(*counted) == pytest.approx(expected, abs=1.0)


def test_a_round_of_rollouts_before_the_steps_of_each_window_is_not_taken_for_a_warm_up() -> None:
    """Steps of a tenth of a second for ten seconds, then forty without one, again and again: one round takes 40 s."""
    counted: list[tuple[float, Steps]] = []
    for second in range(-105, 61):
        into = (second + 105) % 50
        intervals = (40.0, *[0.1] * 9) if into == 40 and second > -65 else (0.1,) * 10 if into >= 40 else ()
        count = 100 * ((second + 105) // 50) + 10 * max(0, into - 39)
        counted.append((float(second), made(count, *intervals, ago=float(max(0, into + 1 if into < 40 else 0)))))

    assert decides_in(*counted) == pytest.approx(3 * 40.0 - SILENT_SECONDS, abs=1.0)


@pytest.mark.parametrize("length", [90.0, 300.0])
def test_a_step_over_many_backward_passes_is_not_missing_however_long_it_takes(length: float) -> None:
    """Gradients are accumulated: when the next step is due, the last one is older than any window of time."""
    job = Training(card=False)
    job.add(Steps(pid=PID, tid=PID, count=6, step_ago_seconds=0.0, interval_seconds=(length,) * 5))
    job.history.at = length - 30.0
    for second in range(29):
        job.goes_on(1.0, [FORWARD, BACKWARD]).steps(6, ago=length - 29.0 + second)

    assert job.verdict().state == "healthy"


def test_a_rank_is_not_last_in_a_phase_that_takes_a_minute_after_a_longer_one() -> None:
    """The second evaluation in one rank, of a hundred seconds as the first: steps stand still for far longer than they took lately."""
    case = RECORDINGS / "straggling_rank" / "fires" / "straggling_rank"
    at, whole = expected_of(case).at, load_case(case)
    stepping, evaluating = History(), History()
    for one in whole.until(at).records:
        stepping.add(one.at, one.reading)
        evaluating.add(one.at, one.reading)
    for rank in Case(stepping, whole.session).job.ranks:
        last = Steps(pid=rank.pid, tid=rank.pid, count=540, interval_seconds=(0.5,) * 20, longest_seconds=100.0)
        evaluating.add(0.0, structs.replace(last, count=500))
        evaluating.add(at - 1.0, structs.replace(last, step_ago_seconds=60.0))
    stepping.at = evaluating.at = at
    steps, evaluates = (judge(Case(one, whole.session)) for one in (stepping, evaluating))

    assert steps.cause == "straggling_rank"
    assert "straggling_rank" not in {evaluates.cause, *(one.cause for one in evaluates.findings)}


@pytest.mark.parametrize("trains", [True, False])
def test_a_loop_that_trains_and_sleeps_in_every_turn_goes_on_though_no_step_is_sampled(trains: bool) -> None:
    """Its steps take less than a millisecond, and nobody counts them; of another loop that sleeps nothing is known."""
    history, sleeps = (
        job(1, trained=False),
        Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.7),
    )
    runs(history, FIRST, (WAITS,), 0.0, 20.0, share=0.001, wait=sleeps, switches_per_second=0.7)
    source = SourceLine(file=TRAIN, line=9, text="time.sleep(1.4)", calls=("time.sleep",), steps_each_turn=trains)
    history.add(0.5, source)
    verdict = judged(history, 20.0)

    assert (verdict.state, verdict.cause) == (("healthy", "balanced") if trains else ("inconclusive", None))
    assert verdict.summary.startswith("one training step about every 1.") is trains


def paced(intervals: Sequence[float]) -> Verdict:
    """A training that goes on, of whose newest steps each took so long."""
    return Training(card=False).goes_on(12.0, STEPS).steps(1000 + len(intervals), *intervals).verdict()


def test_steps_that_grow_are_reported_with_the_first_and_the_last_of_them() -> None:
    """From a tenth of a second to three tenths, by the median of an eighth of the steps."""
    verdict = paced([0.1 + 0.002 * step for step in range(100)])

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "steps take longer and longer: 119 ms at first, 287 ms now" in verdict.summary


MIXED = random.Random(3)
QUICK, SLOW = (0.0065,) * 12, (0.014,) * 12
# Now and then a dozen steps pass as quickly as before, or as slowly as after: measured in a run beside thirty others.
BESIDE_NEIGHBOURS = (*QUICK * 12, *SLOW, *QUICK * 16, *SLOW * 40, *QUICK, *SLOW * 40)
ONCE = (0.05,) * 60 + (0.15,) * 120
EPOCH = tuple(0.05 * 1.02**step for step in range(80))  # batches sorted by length


@pytest.mark.parametrize(
    ("intervals", "times"),
    [((0.1,) * 50 + (0.3,) * 50, "3.00"), (ONCE, "3.00"), (BESIDE_NEIGHBOURS, "2.15")],
    ids=["halfway", "early", "beside neighbours"],
)
def test_a_lasting_shift_is_reported_as_one(intervals: tuple[float, ...], times: str) -> None:
    """Steps that shift once do not grow."""
    verdict = paced(intervals)

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert f"steps became {times} times as long" in verdict.summary


@pytest.mark.parametrize(
    "intervals",
    [
        [MIXED.uniform(0.1, 0.3) for _ in range(200)],
        [0.1 + 0.002 * step for step in range(40)],
        [*EPOCH[:20], *EPOCH * 3],  # the next epoch begins with short batches again
        [*ONCE, *[0.05] * 24],
        [*BESIDE_NEIGHBOURS, *QUICK * 6],
    ],
    ids=["of every length", "too few", "epochs", "back", "back beside neighbours"],
)
def test_steps_whose_change_does_not_last_have_not_regressed(intervals: list[float]) -> None:
    """What comes back was no shift, and a mixture does not grow."""
    verdict = paced(intervals)

    assert verdict.state == "healthy"
    assert "regressed" not in {one.cause for one in verdict.findings}


def test_brief_steps_of_which_only_some_are_listed_have_lasted_as_long_as_was_counted() -> None:
    """Four hundred a second for six seconds, of which a look lists 64; then they take twice as long."""
    job = Training(card=False)
    for second in range(26):
        length = 0.0025 if second < 6 else 0.005
        made = 400 * (second + 1) if second < 6 else 2400 + 200 * (second - 5)
        job.goes_on(1.0, STEPS).steps(made, *[length] * 64)
    verdict = job.verdict()

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "2.00 times as long" in verdict.summary
