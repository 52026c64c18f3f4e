"""Whose lock a training thread waits for again and again: who stands within it, and not who happens to be busy."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.probes.readings import Frame, Reading, SourceLine, Stack, Thread
from perfwatch.recording import Record, load
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.verdict import Finding, Verdict

CASES = Path(__file__).parent / "recordings" / "contended_lock" / "fires"
RESTS = CASES / "holder_rests"
PREFETCH, DECODE = 9001, 9002
DECODES = (Frame("decode", "/home/user/prefetch.py", 8), Frame("run", "/usr/lib/python3.11/threading.py", 982))


def told(case: Path, *busy: int, lines: bool = True) -> Verdict | Finding:
    """Of a recorded training, beside other threads that decode at 90 % of a core and take no lock."""
    recording, at = load(case), expected_of(case).at
    kept = [one for one in recording.records if lines or not _is_inside(one.reading)]
    pid = next(one.reading.pid for one in kept if isinstance(one.reading, Stack))
    for look in range(60):
        then = at - 30.0 + look * 0.5
        for tid in busy:
            ran = 0.45 * look
            thread = Thread(
                pid=pid, tid=tid, name="decoder", state="R", cpu_seconds=ran, run_seconds=ran, voluntary_switches=9
            )
            stack = Stack(pid=pid, tid=tid, frames=DECODES, samples=10, span_seconds=0.5, thread=f"decoder-{tid}")
            kept += [Record(then, 0.0, thread), Record(then, 0.0, stack)]
    verdict = diagnose(replace(recording, records=tuple(sorted(kept, key=lambda one: one.at))), at)
    beside = [one for one in verdict.findings if one.cause == "contended_lock"]
    return verdict if verdict.cause == "contended_lock" else beside[0]


def _is_inside(reading: Reading) -> bool:
    return isinstance(reading, SourceLine) and bool(reading.within) and not reading.text.startswith("with ")


@pytest.mark.parametrize("busy", [(), (PREFETCH,), (PREFETCH, DECODE)])
def test_a_busy_thread_that_takes_no_such_lock_is_not_blamed(busy: tuple[int, ...]) -> None:
    """The one within the ``with`` is, be it that it rests there."""
    alone, beside = told(RESTS), told(RESTS, *busy)

    assert [one.tid for one in beside.culprits] == [one.tid for one in alone.culprits]
    assert beside.confidence <= alone.confidence


def test_where_no_text_tells_the_owner_several_busy_threads_make_it_less_sure() -> None:
    """Each of them may hold it."""
    assert told(RESTS, PREFETCH, lines=False).confidence == 0.88
    assert told(RESTS, PREFETCH, DECODE, lines=False).confidence == 0.7
