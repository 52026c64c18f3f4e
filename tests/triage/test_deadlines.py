"""What a wait's deadline tells: a sleep lasts until then, anything else may end before."""

import pytest

from perfwatch_probes.readings import Frame, PolledFile, Wait
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, LIB, MODULE, STOPPED, TRAIN, job, judged, sends, stands

ASKS = (Frame("readinto", LIB + "socket.py", 706), Frame("judge", TRAIN, 60), MODULE)
REST = (Frame("judge", TRAIN, 61), MODULE)
ANSWER = PolledFile(fd=9, events=1)
UNTIL = STOPPED + 80.0


def elsewhere(kind: str, timeout_seconds: float) -> Wait:
    """What the first rank is in, while the others wait for it in a barrier."""
    polled = (ANSWER,) if kind == "poll" else ()
    fd = ANSWER.fd if kind == "recv" else None
    return Wait(call=kind, number=7, kind=kind, fd=fd, polled=polled, remaining_seconds=timeout_seconds)


@pytest.mark.parametrize("timeout_seconds", [70.0, 300.0, 3600.0])
@pytest.mark.parametrize("kind", ["poll", "recv"])
def test_the_timeout_of_a_request_is_no_promise_that_it_lasts_so_long(kind: str, timeout_seconds: float) -> None:
    """A server that has not answered for ten seconds may still answer.

    Beyond the hang timeout a ``recv`` is called hung. A ``poll`` whose limit is near ends by itself, so it is decided then.
    """
    history = job(3)
    stands(history, FIRST, ASKS, elsewhere(kind, timeout_seconds), UNTIL)
    sends(history, FIRST, ANSWER.fd, 0.0, UNTIL)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, UNTIL)

    soon, late = judged(history, STOPPED + 10.0), judged(history, STOPPED + 65.0)

    assert soon.state == "inconclusive"
    if kind == "poll" and timeout_seconds < 600.0:
        assert late.state == "inconclusive"
        assert late.suspect is not None
        assert late.suspect.cause == "stalled_collective"
        assert late.suspect.decides_in_seconds == pytest.approx(timeout_seconds - 65.0, abs=2.0)
    else:
        assert (late.state, late.cause) == ("hung", "stalled_collective")


def test_a_sleep_of_an_hour_need_not_be_waited_for() -> None:
    """Nothing wakes it before."""
    history = job(3)
    stands(history, FIRST, REST, elsewhere("sleep", 3600.0), UNTIL)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, UNTIL)

    soon = judged(history, STOPPED + 10.0)

    assert (soon.state, soon.cause) == ("hung", "stalled_collective")
