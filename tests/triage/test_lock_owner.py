"""Whoever waits for a lock is not told as hung while its owner works, be it with a CPU or with data."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Place
from perfwatch_probes.readings import Descriptor, Frame, ProcessUsage, SourceLine, Wait
from tests.recorded import RECORDINGS, load_case
from tests.triage.rank_looks import FIRST, FOR_EVER, MODULE, STOPPED, TRAIN, job, judged, stands

CASE = RECORDINGS / "waiting_for_file" / "fires" / "waiting_for_file-flock-masked"
SECONDS = 4.0  # between two looks at the owner


@pytest.mark.parametrize(
    ("cpu_seconds", "written_bytes", "state"),
    [(0.0, 0, "hung"), (0.01, 100, "hung"), (0.5, 0, None), (0.01, 10**6, None)],
)
def test_an_owner_that_computes_or_writes_will_let_the_lock_go(
    cpu_seconds: float, written_bytes: int, state: str | None
) -> None:
    """A heartbeat is no work."""
    recording, at = load_case(CASE), expected_of(CASE).at
    owner = next(
        pid for one in recording.records if isinstance(one.reading, Descriptor) for pid in one.reading.lock_holders
    )
    others = tuple(one for one in recording.records if not is_usage(one, owner))
    looks = tuple(
        Record(at - SECONDS * (1 - number), usage(owner, cpu_seconds * number, written_bytes * number))
        for number, one in enumerate(recording.records[:2])
    )

    verdict = diagnose(replace(recording, records=others + looks), at)

    assert (verdict.state if verdict.cause == "waiting_for_file" else None) == state


def is_usage(one: Record, pid: int) -> bool:
    """Whether a record says what a process has used."""
    return isinstance(one.reading, ProcessUsage) and one.reading.pid == pid


def usage(pid: int, cpu_seconds: float, written_chars: int) -> ProcessUsage:
    """What a process has used so far."""
    nothing = {"major_faults": 0, "minor_faults": 0, "resident_bytes": 0, "read_chars": 0}
    return ProcessUsage(pid=pid, state="S", threads=1, cpu_seconds=cpu_seconds, written_chars=written_chars, **nothing)


def test_a_lock_whose_holder_sleeps_is_told_with_its_name_both_lines_and_the_time_left() -> None:
    """A thread sleeps an hour with the lock in hand, the main thread waits in ``with lock:``."""
    history, logger = job(1), FIRST + 50
    history.add(1.0, SourceLine(file=TRAIN, line=30, text="with lock:", within=("lock",)))
    history.add(1.0, SourceLine(file=TRAIN, line=20, text="time.sleep(3600)", calls=("time.sleep",), within=("lock",)))
    stands(history, FIRST, (Frame("fit", TRAIN, 30), MODULE), FOR_EVER, STOPPED + 30)
    hour = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=3600.0)
    stands(history, FIRST, (Frame("log", TRAIN, 20), MODULE), hour, STOPPED + 30, tid=logger)

    verdict = judged(history, STOPPED + 30)

    assert verdict.state == "hung"
    assert 'main thread at fit (train.py:30) is blocked on the lock "lock", held by thread' in verdict.summary
    assert "at log (train.py:20) sleeps for another 59 min 30 s" in verdict.summary
    assert verdict.next[0] == "release the lock before the sleep at log (train.py:20)"
    assert verdict.culprits[0].place == Place(function="log", file=TRAIN, line=20, source="time.sleep(3600)")
