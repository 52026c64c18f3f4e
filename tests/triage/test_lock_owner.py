"""Whoever waits for a lock is not told as hung while its owner works, be it with a CPU or with data."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Descriptor, ProcessUsage
from tests.recorded import RECORDINGS, load_case

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
