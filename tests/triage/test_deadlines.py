"""What a wait's deadline tells: a sleep lasts until then, anything else may end before."""

from itertools import pairwise

import pytest

from perfwatch_probes.readings import Frame, PolledFile, SourceLine, Stack, Thread, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TRAIN,
    job,
    judged,
    looks,
    runs,
    sends,
    stands,
)

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


@pytest.mark.parametrize(
    ("calls", "states"),
    [(("time.sleep", "self.poll_jobs"), ("busy", "busy")), (("time.sleep",), ("inconclusive", "hung"))],
)
def test_a_rank_that_does_nothing_but_sleep_again_and_again_never_comes(
    calls: tuple[str, ...], states: tuple[str, str]
) -> None:
    """Each of its sleeps ends soon, and nothing in its loop leaves it."""
    history = job(3)
    history.add(0.0, SourceLine(file=TRAIN, line=61, text="time.sleep(90)", calls=("time.sleep",), loop_calls=calls,
                                loops=("while",), endless=True))  # fmt: skip
    stands(history, FIRST, REST, elsewhere("sleep", 90.0), UNTIL)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, UNTIL)

    assert tuple(judged(history, STOPPED + seconds).state for seconds in (20.0, 70.0)) == states


@pytest.mark.parametrize(("keeps_gil", "states"), [(False, ("busy", "busy")), (True, ("inconclusive", "hung"))])
def test_a_sleep_that_keeps_the_gil_from_threads_that_ask_for_it_was_not_meant(
    keeps_gil: bool, states: tuple[str, str]
) -> None:
    """A call of C that does not let go of it: a heartbeat asks for it 200 times a second."""
    history, heartbeat = job(1), FIRST + 40
    stands(history, FIRST, REST, elsewhere("sleep", 90.0), UNTIL)
    beats = (Frame("beat", TRAIN, 20), Frame("_bootstrap", LIB + "threading.py", 1002))
    asks = Wait(call="futex", number=202, kind="futex", remaining_seconds=0.004)
    for at in looks(STOPPED, UNTIL):
        history.add(at + 0.001, Stack(pid=FIRST, tid=FIRST, frames=REST, owns_gil=keeps_gil))
        history.add(at + 0.001, Stack(pid=FIRST, tid=heartbeat, frames=beats, owns_gil=False))
        history.add(at, Thread(pid=FIRST, tid=heartbeat, name="python", state="S", cpu_seconds=1.0, run_seconds=1.0,
                               voluntary_switches=int(200 * at), ran_ago_seconds=0.002, wait=asks))  # fmt: skip
    said = [judged(history, STOPPED + seconds) for seconds in (20.0, 70.0)]

    assert tuple(one.state for one in said) == states
    assert not keeps_gil or said[1].cause == "held_gil"


@pytest.mark.parametrize(
    ("holder", "page_seconds", "states"),
    [(FIRST, 600.0, ("inconclusive", "hung")), (FIRST + 40, 600.0, ("hung", "hung")), (FIRST, 15.0, ("busy", "busy"))],
)
def test_an_expression_is_soon_too_long_where_the_training_thread_did_not_ask_for_it(
    holder: int, page_seconds: float, states: tuple[str, str]
) -> None:
    """A page of a text may take the training thread 15 s, while a heartbeat starves; what another thread does, it need not wait for.

    Between two pages the heartbeat gets the GIL for once.
    """
    history, other = job(1), FIRST + 40 if holder == FIRST else FIRST
    history.add(0.0, SourceLine(file=TRAIN, line=20, text="text = re.sub(SPAM, '', page)", calls=("re.sub",)))
    asks, rests = (Wait(call="futex", number=202, kind="futex", remaining_seconds=one) for one in (0.004, 0.5))
    runs(history, FIRST, [(Frame("clean", TRAIN, 20), MODULE)], STOPPED, UNTIL, tid=holder, share=1.0)
    for before, at in pairwise(looks(STOPPED, UNTIL)):
        passed = (at - STOPPED) // page_seconds > (before - STOPPED) // page_seconds
        history.add(at + 0.001, Stack(pid=FIRST, tid=other, frames=REST, owns_gil=False))
        history.add(at, Thread(pid=FIRST, tid=other, name="python", state="S", cpu_seconds=1.0, run_seconds=1.0,
                               voluntary_switches=int(200 * at), ran_ago_seconds=0.002, wait=rests if passed else asks))  # fmt: skip

    assert tuple(judged(history, STOPPED + seconds).state for seconds in (20.0, 45.0)) == states
