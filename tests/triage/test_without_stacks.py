"""Where py-spy is missing or denied: what the kernel alone tells of a worker, and what is advised then."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import ProbeCall, Reading, Thread, Wait
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "stuck_worker" / "fires" / "told_without_stacks"
TRAINER, SLEEPER, IDLE = 28159, 28335, 28336
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)


def judged(patience: float = 60.0, advice: str | None = None, **waits: Wait) -> Verdict:
    """The recorded worker that sleeps for days, with other waits (by ``p`` and pid), patience, or advice on what py-spy lacks."""
    recording, at = load_case(CASE), expected_of(CASE).at

    def told(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.tid == reading.pid and f"p{reading.pid}" in waits:
            return msgspec.structs.replace(reading, wait=waits[f"p{reading.pid}"])
        if isinstance(reading, ProbeCall) and advice is not None:
            return msgspec.structs.replace(reading, advice=advice)
        return reading

    records = tuple(msgspec.structs.replace(one, reading=told(one.reading)) for one in recording.records)
    session = msgspec.structs.replace(recording.session, conditions={"patience_seconds": patience})
    return diagnose(replace(recording, records=records, session=session), at)


def test_the_kernel_alone_names_the_worker_that_sleeps_for_days() -> None:
    """Less surely than with its stack."""
    verdict = judged()

    assert (verdict.state, verdict.cause) == ("hung", "stuck_worker")
    assert verdict.confidence == 0.65
    assert f"DataLoader worker {SLEEPER} sleeps for another 11 d 13 h" in verdict.summary


def test_until_the_patience_is_over_it_is_a_suspicion_with_a_countdown() -> None:
    """A sleep that outlasts even a long patience."""
    verdict = judged(patience=3600.0)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "stuck_worker"
    assert verdict.suspect.decides_in_seconds > 60.0


def test_a_loaders_worker_never_waits_for_a_lock_for_so_long() -> None:
    """It is idle in a poll of its queue that times out again and again."""
    assert judged(p28335=LOCK).cause == "stuck_worker"


@pytest.mark.parametrize("left", [2.0, 30.0])
def test_a_worker_that_wakes_soon_is_not_hung(left: float) -> None:
    """The kernel knows until when it sleeps. A long sleep is reported as work that the training thread waits for."""
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=left)

    verdict = judged(p28335=nap)

    assert verdict.state == ("busy" if left > 10.0 else "inconclusive")


def test_workers_that_are_all_idle_are_not_to_blame() -> None:
    """Both wait for their next task: what the training thread does then, it does itself."""
    idle = next(
        one.reading.wait
        for one in load_case(CASE).records
        if isinstance(one.reading, Thread) and one.reading.tid == IDLE
    )
    assert idle is not None
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=4.0)

    assert judged(p28335=idle, p28159=nap).cause is None


@pytest.mark.parametrize(
    ("advice", "first"), [("pip install py-spy", "pip install py-spy"), ("", "perfwatch doctor 28335")]
)
def test_what_would_let_it_read_stacks_is_advised_in_place_of_a_dump(advice: str, first: str) -> None:
    """``perfwatch capture stacks`` would fail there as well."""
    verdict = judged(advice=advice)

    assert verdict.next == ("set DataLoader(timeout=...) to turn this hang into an error", first)
