"""When a one-shot look gives its verdict: at once where it is plain, and never before it is."""

from io import StringIO

import pytest

from perfwatch.verdict import Suspect, Verdict
from perfwatch.watching.status_line import StatusLine, leaning
from perfwatch.watching.when_to_stop import LONGER_SECONDS, STEADY_SECONDS, SURER_SECONDS, UNCLEAR_SECONDS, OneShot
from tests.sessions import verdict


def judged(
    state: str,
    cause: str | None,
    confidence: float,
    decides_in_seconds: float | None = None,
    silent_seconds: float = 1.0,
    suspected: str = "blocked_network",
) -> Verdict:
    """A verdict as the watch makes it."""
    suspect = None
    if decides_in_seconds is not None:
        suspect = Suspect(
            state="hung", cause=suspected, silent_seconds=silent_seconds, decides_in_seconds=decides_in_seconds
        )
    return verdict(state=state, cause=cause, confidence=confidence, suspect=suspect)


def test_a_plain_hang_is_given_at_once() -> None:
    """Nobody waits for what is clear."""
    assert OneShot().done(judged("hung", "stopped", 0.98), at=0.4)


def test_a_hang_that_is_not_plain_is_looked_at_a_little_longer() -> None:
    """A second dump often makes it plain; if none does, it is given all the same."""
    shot = OneShot()

    assert not shot.done(judged("hung", "deadlocked_locks", 0.78), at=0.4)
    assert shot.done(judged("hung", "deadlocked_locks", 0.78), at=SURER_SECONDS)


@pytest.mark.parametrize("state", ["slow", "healthy", "busy"])
def test_what_moves_is_judged_twice_over_several_seconds(state: str) -> None:
    """One sample of a loop says little."""
    shot = OneShot()

    assert not shot.done(judged(state, "cpu_training", 0.8), at=LONGER_SECONDS)
    assert shot.done(judged(state, "cpu_training", 0.8), at=LONGER_SECONDS + 1)


@pytest.mark.parametrize(("cause", "given"), [("slow_output", True), ("serial_loading", False)])
def test_what_a_native_profile_may_explain_waits_for_it(cause: str, given: bool) -> None:
    """Python's collector shows in no stack: it runs within whatever line makes objects."""
    shot = OneShot()
    shot.done(judged("slow", cause, 0.8), at=STEADY_SECONDS)

    assert shot.done(judged("slow", cause, 0.8), at=STEADY_SECONDS + 1) is given
    assert shot.done(judged("slow", cause, 0.8), at=LONGER_SECONDS)


def test_what_is_busy_in_doubt_is_looked_at_longer() -> None:
    """A compilation that may be the second or one of many: the next step tells."""
    shot = OneShot()

    assert not any(shot.done(judged("busy", "compiling", 0.68), at=at) for at in (LONGER_SECONDS, LONGER_SECONDS + 1))
    assert shot.done(judged("busy", "compiling", 0.68), at=UNCLEAR_SECONDS)


def test_a_suspicion_is_waited_for() -> None:
    """While patience runs, nothing is said; without a suspect an unclear job is given up after a while."""
    suspected, unclear = OneShot(), OneShot()

    assert not suspected.done(judged("inconclusive", None, 0.4, decides_in_seconds=30.0), at=UNCLEAR_SECONDS)
    assert unclear.done(judged("inconclusive", None, 0.0), at=UNCLEAR_SECONDS)


def test_a_suspect_that_moves_again_and_again_is_not_waited_for() -> None:
    """Its countdown would never end: a worker that hands something over every few seconds."""
    shot = OneShot()
    looks = [
        shot.done(judged("inconclusive", None, 0.4, 60.0 - silent, silent_seconds=silent), at=UNCLEAR_SECONDS + turn)
        for turn, silent in enumerate([9.0, 0.5, 8.0, 0.5, 7.0, 0.5])
    ]

    assert looks == [False, False, False, False, False, True]


def test_two_suspects_in_turns_are_waited_for() -> None:
    """That one has been silent for less long than the other does not mean that it has moved."""
    shot = OneShot()
    looks = [
        shot.done(judged("inconclusive", None, 0.4, 30.0, silent, cause), at=UNCLEAR_SECONDS + turn)
        for turn, (cause, silent) in enumerate([("blocked_network", 30.0), ("held_gil", 3.0)] * 4)
    ]

    assert not any(looks)


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def shown(stream: StringIO, judged_at: tuple[float, ...], last: Verdict) -> str:
    """What is on a stream after a first line and what was known at these moments."""
    shot, moment = OneShot(), [0.0]
    with StatusLine(stream, clock=lambda: moment[0]) as status:
        status.begin("attaching to pid 7")
        for at in judged_at:
            moment[0] = at
            status.now(leaning(last, shot.left(last, at)))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (judged("inconclusive", None, 0.0), "decides in 14 s; worker 758"),
        (judged("inconclusive", None, 0.4, decides_in_seconds=40.0), "hung (blocked_network) in 40 s if nothing moves"),
        (judged("healthy", "cpu_training", 0.8), "leaning to healthy (cpu_training)"),
    ],
)
def test_a_pipe_gets_a_line_at_once_and_then_one_now_and_then(last: Verdict, said: str) -> None:
    """A script that gives up after a while has in its log what was suspected, and when it would have been decided."""
    lines = shown(StringIO(), (2.0, 9.0, 10.5, 12.0), last).splitlines()

    assert lines[0] == "perfwatch: attaching to pid 7"
    assert len(lines) == 2
    assert lines[1].startswith(f"perfwatch: {said}")


def test_a_terminal_has_one_line_that_is_drawn_again_and_erased() -> None:
    """It never scrolls, never wraps, and leaves no trace above the verdict."""
    text = shown(Terminal(), (0.1, 0.5, 1.0), judged("inconclusive", None, 0.0))

    assert "\n" not in text
    assert text.count("\r\x1b[K") == 4
    assert text.endswith("\r\x1b[K")
    assert max(map(len, text.split("\r\x1b[K"))) < 80
