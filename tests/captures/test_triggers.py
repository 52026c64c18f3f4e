"""Which capture a signal or a verdict asks for, and how often."""

import pytest

from perfwatch.captures import torch_profiler
from perfwatch.captures.capture import Request
from perfwatch.captures.catalogue import CAPTURES
from perfwatch.captures.triggers import COOLDOWN_SECONDS, MOST_BY_RULE, Limits, request_for, ruled, signalled, states
from perfwatch.errors import CaptureRefused, CaptureUnavailable, UsageError
from tests.captures.stages import scene, subject


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:  # noqa: D102
        return self.now


def test_signal_means_the_profiler_that_is_armed() -> None:
    """And nothing where none is."""
    assert signalled("timeline", scene(armed={"torch": {}})) is torch_profiler
    assert signalled("timeline", scene(armed={})) is None
    assert signalled("kernels", scene(armed={"torch": {}})) is None


def test_triggers_close_together_are_one() -> None:
    """Ten in a second; the next one counts when there was a pause."""
    clock = Clock()
    limits = Limits(clock)
    first = [limits.together() for _ in range(10)]
    clock.now += 5

    assert first == [False] + 9 * [True]
    assert limits.together() is False


def test_verdicts_may_ask_seldom() -> None:
    """A pause between two, and a few in a session."""
    clock = Clock()
    limits = Limits(clock)
    allowed = []
    for _ in range(2 * MOST_BY_RULE):
        allowed.append(limits.allow_rule())
        allowed.append(limits.allow_rule())
        clock.now += COOLDOWN_SECONDS + 1

    assert allowed == [True, False] * MOST_BY_RULE + [False, False] * MOST_BY_RULE


def test_states_that_no_capture_helps_with_are_refused() -> None:
    """``--capture-on healthy`` is a mistake."""
    assert states("slow, hung") == ("slow", "hung")
    with pytest.raises(UsageError, match="healthy is not one of slow, hung"):
        states("slow,healthy")


def test_window_on_a_hung_job_is_one_of_time() -> None:
    """It makes no steps."""
    hung = scene(state="hung")

    assert request_for(torch_profiler, hung, "rule").seconds == 2.0
    assert request_for(torch_profiler, scene(), "rule").seconds is None


@pytest.mark.parametrize("state", [{"state": "hung"}, {"state": "inconclusive", "suspected": "hung"}])
def test_python_stacks_are_never_taken_of_a_job_that_may_hang(state: dict[str, str]) -> None:
    """They wait for the GIL, and would hang with it; without them a window is taken."""
    stage = scene(armed={"torch": {}}, **state)
    torch_profiler.available(Request(kind="torch"), stage)

    with pytest.raises(CaptureRefused, match="waits for the GIL"):
        torch_profiler.available(Request(kind="torch", options={"stacks": "yes"}), stage)
    with pytest.raises(CaptureRefused, match="no steps"):
        torch_profiler.available(Request(kind="torch", steps=5), stage)


@pytest.mark.parametrize("cause", ["stuck_kernel", "driver_unresponsive"])
def test_no_trace_is_begun_that_would_wait_for_a_card_that_stands(cause: str) -> None:
    """The profiler collects what the card did, and that never comes."""
    with pytest.raises(CaptureRefused, match=cause):
        torch_profiler.available(
            Request(kind="torch", seconds=2.0), scene(armed={"torch": {}}, state="hung", cause=cause)
        )


def test_process_without_torch_is_told_at_once() -> None:
    """Nobody waits for a profiler that cannot be there."""
    with pytest.raises(CaptureUnavailable, match="has not imported torch"):
        torch_profiler.available(Request(kind="torch"), scene(subjects=(subject(torch_loaded=False),)))


@pytest.mark.parametrize("capture", CAPTURES, ids=[one.NAME for one in CAPTURES])
def test_every_capture_says_what_it_is_and_what_it_disturbs(capture: object) -> None:
    """The help and the README are made of it."""
    for name in ("NAME", "SUMMARY", "DISTURBS"):
        assert getattr(capture, name)
    assert callable(getattr(capture, "collect", None))


@pytest.mark.parametrize(
    ("state", "armed", "first"),
    [
        ("slow", ("torch",), "torch"),
        ("slow", ("nsys",), "nsys"),
        ("slow", ("nsys", "torch"), "nsys"),
        ("hung", ("torch",), "stacks"),
        ("hung", (), "stacks"),
    ],
)
def test_a_verdict_asks_the_profiler_that_the_job_is_armed_for(state: str, armed: tuple[str, ...], first: str) -> None:
    """Nsys that happens to be installed could only sample the machine, for a minute and without a kernel."""
    assert ruled(state, scene(armed={name: {} for name in armed}))[0].NAME == first
