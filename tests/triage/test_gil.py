"""When a training thread that goes on is kept from the GIL, and when something else slows it: one recorded job, changed in one point."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Reading, Stack, Thread, Wait
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "contended_lock" / "fires" / "telemetry_thread"
TRAINER, HELPER = 14135, 14137
POLLS = (
    Frame("get", "/usr/lib/python3.11/queue.py", 180),
    Frame("main", "/home/user/tts/train.py", 48),
)


def judged(change: Callable[[Reading], Reading] = lambda reading: reading) -> Verdict:
    """What is said of the job once every reading of it is changed."""
    whole = load_case(CASE)
    records = tuple(msgspec.structs.replace(one, reading=change(one.reading)) for one in whole.records)
    return diagnose(replace(whole, records=records))


def waiting(**differs: object) -> Callable[[Reading], Reading]:
    """A change of what the training thread sleeps in."""

    def change(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.tid == TRAINER and isinstance(reading.wait, Wait):
            return msgspec.structs.replace(reading, wait=msgspec.structs.replace(reading.wait, **differs))
        return reading

    return change


def owned_by(owner: int | None) -> Callable[[Reading], Reading]:
    """A change of who owns the GIL in every dump; None: no dump tells."""

    def change(reading: Reading) -> Reading:
        if isinstance(reading, Stack) and reading.owns_gil is not None:
            return msgspec.structs.replace(reading, owns_gil=None if owner is None else reading.tid == owner)
        return reading

    return change


def polling(reading: Reading) -> Reading:
    """The training thread asks a queue of its own again and again, for a few milliseconds each time."""
    return (
        msgspec.structs.replace(reading, frames=POLLS)
        if isinstance(reading, Stack) and reading.tid == TRAINER
        else reading
    )


def without_a_cpu(reading: Reading) -> Reading:
    """The training thread could run whenever it is looked at."""
    if isinstance(reading, Thread) and reading.tid == TRAINER:
        return msgspec.structs.replace(reading, state="R", wait=None)
    return reading


def test_the_thread_that_has_the_gil_is_named_with_its_line_and_a_way_out() -> None:
    """It computes in Python all the time, and the training thread gets 6 % of a core."""
    verdict = judged()
    (culprit,) = verdict.culprits

    assert (verdict.cause, culprit.tid, culprit.thread) == ("contended_lock", HELPER, "telemetry")
    assert culprit.frame is not None
    assert culprit.frame.startswith("run (train.py:")
    assert "process of its own" in verdict.next[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(owned_by(TRAINER), id="the trainer owns the GIL itself"),
        pytest.param(owned_by(0), id="the helper works without the GIL"),
        pytest.param(waiting(remaining_seconds=3.0), id="it waits for seconds, as for a batch"),
        pytest.param(waiting(remaining_seconds=None, forever=True), id="it waits for a lock of the program"),
        pytest.param(without_a_cpu, id="it has no CPU"),
        pytest.param(polling, id="it polls a queue"),
    ],
)
def test_what_only_looks_alike_is_not_blamed_on_the_gil(change: Callable[[Reading], Reading]) -> None:
    """In one point each it is another job than the one that was recorded."""
    verdict = judged(change)
    named = {verdict.cause, *(one.cause for one in verdict.findings)}

    assert "contended_lock" not in named


def test_where_no_dump_tells_the_owner_nobody_is_blamed_and_it_is_said() -> None:
    """Missing is not zero."""
    verdict = judged(owned_by(None))
    reasons = [one.reason for one in verdict.missing]

    assert verdict.cause is None
    assert any("which thread owns the GIL" in reason for reason in reasons)


@pytest.mark.parametrize("owner", [None, 0, TRAINER])
def test_a_training_thread_that_waits_for_the_gil_most_of_its_time_is_not_healthy(owner: int | None) -> None:
    """Whoever owns it."""
    assert judged(owned_by(owner)).state != "healthy"
