"""What a process outside of the job, a signal, a peer or the end of a long sleep may still bring about is called hung less surely."""

import signal

import msgspec
import pytest

from perfwatch_probes.readings import ProcessUsage, Reading, Thread, Traffic
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

WOKEN = RECORDINGS / "deadlocked_locks" / "lookalike" / "woken_by_a_signal"
SLEEPS = RECORDINGS / "endless_python" / "fires" / "endless_python-sleep"
SILENT = RECORDINGS / "blocked_network" / "fires" / "blocked_network"
TAGS = RECORDINGS / "mismatched_collective" / "fires" / "tags_that_differ"
FIRST_SWITCHES = 554  # of the thread when it was first looked at
TRIES = RECORDINGS / "retrying" / "fires" / "waits_in_a_try"


@pytest.mark.parametrize(
    ("caught", "hung"),
    [((signal.SIGUSR1,), False), ((signal.SIGALRM,), False), ((signal.SIGINT, signal.SIGTERM), True), ((), True)],
)
def test_an_event_that_a_handler_may_set_is_given_the_whole_patience(caught: tuple[int, ...], hung: bool) -> None:
    """Of signals by which programs tell each other something; not of those that end a program."""
    mask = sum(1 << (number - 1) for number in caught)

    def changed(reading: Reading) -> Reading:
        usage = isinstance(reading, ProcessUsage)
        return msgspec.structs.replace(reading, signals_caught=mask) if usage else reading

    assert (retold(WOKEN, changed).state == "hung") is hung


@pytest.mark.parametrize(("seconds", "surely"), [(1800.0, False), (30 * 86400.0, True)])
def test_a_sleep_of_hours_may_be_a_rest_between_rounds(seconds: float, surely: bool) -> None:
    """One of a month is none."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Thread) or reading.wait is None or reading.wait.remaining_seconds is None:
            return reading
        return msgspec.structs.replace(reading, wait=msgspec.structs.replace(reading.wait, remaining_seconds=seconds))

    verdict = retold(SLEEPS, changed)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert (verdict.confidence >= 0.8) is surely


def test_a_peer_that_is_silent_may_compute_all_the_same() -> None:
    """It is hung by the patience, and not by what is known of the peer."""
    assert retold(SILENT).confidence == 0.65


def test_sends_and_receives_of_which_nobody_sees_what_travels_may_go_on() -> None:
    """Stages of a pipeline wait for each other in this way while a large message is under way."""

    def changed(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, pid=1) if isinstance(reading, Traffic) else reading

    assert retold(TAGS).state == "hung"
    assert retold(TAGS, changed).state == "inconclusive"


def test_a_try_in_which_the_thread_computes_is_work() -> None:
    """And no wait for an answer."""

    def changed(reading: Reading) -> Reading:
        later = isinstance(reading, Thread) and (reading.voluntary_switches or 0) > FIRST_SWITCHES
        return msgspec.structs.replace(reading, run_seconds=20.0) if later else reading

    assert retold(TRIES).cause == "retrying"
    assert retold(TRIES, changed).cause is None
