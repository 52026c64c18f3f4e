"""Whose lock a training thread waits for again and again: who stands within it, and not who happens to be busy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Finding, Verdict
from perfwatch_probes.readings import Descriptor, Frame, Reading, SourceLine, Stack, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TRAIN, Training

CASES = RECORDINGS / "contended_lock" / "fires"
RESTS = CASES / "holder_rests"
LOGGING = "/usr/lib/python3.11/logging/__init__.py"
ROTATES = (
    Frame("LZMAFile.close", "/usr/lib/python3.11/lzma.py", 147),
    Frame("pack", "/home/user/logs.py", 16),
    Frame("RotatingFileHandler.doRollover", "/usr/lib/python3.11/logging/handlers.py", 179),
    Frame("BaseRotatingHandler.emit", "/usr/lib/python3.11/logging/handlers.py", 74),
    Frame("Handler.handle", LOGGING, 978),
    Frame("Logger.debug", LOGGING, 1477),
    Frame("telemetry", "/home/user/logs.py", 41),
    Frame("Thread.run", "/usr/lib/python3.11/threading.py", 982),
)
PREFETCH, DECODE = 9001, 9002
DECODES = (Frame("decode", "/home/user/prefetch.py", 8), Frame("run", "/usr/lib/python3.11/threading.py", 982))


def told(case: Path, *busy: int, lines: bool = True, acquires: bool = False, read: bool = False) -> Verdict | Finding:
    """Of a recorded training, beside other threads that decode at 90 % of a core and take no lock.

    Its holder's lines may not have been read, or it may take its lock by ``acquire``; those of the others may have been read.
    """
    recording, at = load_case(case), expected_of(case).at
    kept = [one for one in recording.records if lines or not _is_inside(one.reading)]
    kept = [_by_acquire(one) if acquires else one for one in kept]
    kept += (
        [Record(0.0, SourceLine(file=frame.file, line=frame.line, text="decode()")) for frame in DECODES]
        if read
        else []
    )
    pid = next(one.reading.pid for one in kept if isinstance(one.reading, Stack))
    for look in range(60):
        then = at - 30.0 + look * 0.5
        for tid in busy:
            ran = 0.45 * look
            thread = Thread(
                pid=pid, tid=tid, name="decoder", state="R", cpu_seconds=ran, run_seconds=ran, voluntary_switches=9
            )
            stack = Stack(pid=pid, tid=tid, frames=DECODES, samples=10, span_seconds=0.5, thread=f"decoder-{tid}")
            kept += [Record(then, thread), Record(then, stack)]
    verdict = diagnose(replace(recording, records=tuple(sorted(kept, key=lambda one: one.at))), at)
    beside = [one for one in verdict.findings if one.cause == "contended_lock"]
    return verdict if verdict.cause == "contended_lock" else beside[0]


def _is_inside(reading: Reading) -> bool:
    return isinstance(reading, SourceLine) and bool(reading.within) and not reading.text.startswith("with ")


def _by_acquire(record: Record) -> Record:
    line = record.reading
    if not _is_inside(line) or not isinstance(line, SourceLine):
        return record
    calls = ("self.lock.acquire", *line.loop_calls, "self.lock.release")
    return structs.replace(record, reading=structs.replace(line, within=(), loop_calls=calls))


@pytest.mark.parametrize("busy", [(), (PREFETCH,), (PREFETCH, DECODE)])
def test_a_busy_thread_that_takes_no_such_lock_is_not_blamed(busy: tuple[int, ...]) -> None:
    """The one within the ``with`` is, be it that it rests there."""
    alone, beside = told(RESTS), told(RESTS, *busy)

    assert [one.tid for one in beside.culprits] == [one.tid for one in alone.culprits]
    assert beside.confidence <= alone.confidence


def test_where_no_text_tells_the_owner_several_busy_threads_make_it_less_sure() -> None:
    """Each of them may hold it."""
    assert told(RESTS, PREFETCH, lines=False).confidence == 0.95
    assert told(RESTS, PREFETCH, DECODE, lines=False).confidence == 0.65


def test_a_busy_thread_whose_lines_take_no_lock_is_blamed_less_surely() -> None:
    """Its text was read, and it stands within no ``with``."""
    assert told(RESTS, PREFETCH, lines=False, read=True).confidence == 0.65


@pytest.mark.parametrize("busy", [(), (PREFETCH,)])
def test_who_naps_in_a_loop_that_acquires_the_lock_is_blamed_and_not_who_computes_beside_it(
    busy: tuple[int, ...],
) -> None:
    """It takes and returns the lock by calls, not in a ``with``."""
    within, by_calls = told(RESTS), told(RESTS, *busy, acquires=True, read=True)

    assert [one.tid for one in by_calls.culprits] == [one.tid for one in within.culprits]
    assert by_calls.confidence <= within.confidence


FLOCK = Wait(call="flock", number=73, kind="lock", fd=5, forever=True)
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.02)
MERGE = (Frame("merge", TRAIN, 40), Frame("train", TRAIN, 15))
OTHER = 9003


def at_a_file(wait: Wait, *holders: int, text: str = "db.execute(query)", loop_calls: tuple[str, ...] = ()) -> Verdict:
    """Of a training that waits half of the time at a line, while these have a file of it locked."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=40, text=text, calls=(text.partition("(")[0],), loop_calls=loop_calls))
    for turn in range(20):
        job.goes_on(0.5, [(FORWARD, BACKWARD, OPTIMIZER)[turn % 3]], writes=1)
        file = Descriptor(pid=PID, fd=5, kind="file", target="/data/runs.db", inode=7, lock_holders=holders)
        job.add(file)
        job.goes_on(0.5, [MERGE], run_share=0.4, wait=wait, writes=1)
    return job.verdict()


@pytest.mark.parametrize(
    ("wait", "said"),
    [(FLOCK, {}), (NAP, {}), (NAP, {"text": "time.sleep(pause)", "loop_calls": ("fcntl.lockf", "time.sleep")})],
)
def test_a_training_thread_that_waits_for_a_lock_on_a_file_is_kept_by_its_holder(
    wait: Wait, said: dict[str, Any]
) -> None:
    """In the kernel, or in sleeps between two tries, sqlite's or the program's own: then nothing is written."""
    verdict = at_a_file(wait, OTHER, **said)

    assert (verdict.state, verdict.cause) == ("slow", "contended_lock")
    assert (verdict.culprits[0].frame, str(OTHER) in verdict.summary) == ("merge (train.py:40)", True)
    assert "slow_output" not in {one.cause for one in verdict.findings}


@pytest.mark.parametrize(("holders", "text"), [((), "db.execute(query)"), ((OTHER,), "time.sleep(pause)")])
def test_a_sleep_is_no_wait_for_a_lock_where_none_is_held_or_the_program_sleeps(
    holders: tuple[int, ...], text: str
) -> None:
    """A pause of the program's own says nothing of a file that happens to be locked."""
    verdict = at_a_file(NAP, *holders, text=text)

    assert "contended_lock" not in {verdict.cause, *(one.cause for one in verdict.findings)}


def test_what_a_loop_tries_and_its_rest_when_that_fails_are_one_wait() -> None:
    """Looks at the thread meet the rest, and samples both: each try sleeps in the library until its own timeout."""
    job = Training(card=False)
    job.add(
        SourceLine(file=TRAIN, line=40, text="db.execute(query)", calls=("db.execute",), loop_lines=(38, 44)),
        SourceLine(file=TRAIN, line=44, text="time.sleep(0.1)", calls=("time.sleep",), loop_lines=(38, 44),
                   retried_calls=("db.execute",)),
    )  # fmt: skip
    rests = (Frame("merge", TRAIN, 44), Frame("train", TRAIN, 15))
    for turn in range(12):
        job.goes_on(0.5, [(FORWARD, BACKWARD, OPTIMIZER)[turn % 3]], writes=1)
        job.add(Descriptor(pid=PID, fd=5, kind="file", target="/data/runs.db", inode=7, lock_holders=(OTHER,)))
        at = job.history.at
        tries = Stack(pid=PID, tid=PID, frames=MERGE, samples=9, span_seconds=0.5, owns_gil=False)
        job.history.add(at + 0.5, tries)
        job.history.at = at + 0.8
        job.goes_on(0.5, [rests], run_share=0.4, wait=NAP, samples=2, writes=1)
    verdict = job.verdict()

    assert (verdict.state, verdict.cause) == ("slow", "contended_lock")
    assert verdict.culprits[0].frame == "merge (train.py:40)"


def test_a_lock_that_a_library_takes_is_named_with_the_programs_line_and_the_way_to_the_slow_one() -> None:
    """A log handler whose rollover compresses under its lock: the line that logs is the culprit, and the advice is one for handlers."""
    case = CASES / "log_handler"
    recording = load_case(case)
    own = {one.reading.pid for one in recording.records if isinstance(one.reading, Stack)}

    def rotates(record: Record) -> Record:
        if not isinstance(record.reading, Stack) or record.reading.tid in own:
            return record
        return structs.replace(record, reading=structs.replace(record.reading, frames=ROTATES))

    verdict = diagnose(replace(recording, records=tuple(map(rotates, recording.records))), expected_of(case).at)

    assert "for a logging handler's lock while thread log-mirror works at pack (logs.py:16)" in verdict.summary
    assert verdict.summary.endswith("it took the lock at telemetry (logs.py:41)")
    assert [one.frame for one in verdict.culprits] == ["telemetry (logs.py:41)"]
    way = "telemetry (logs.py:41) > Handler.handle > BaseRotatingHandler.emit > RotatingFileHandler.doRollover > pack (logs.py:16)"
    assert way in [one.observed for one in verdict.evidence]
    assert "QueueHandler" in verdict.next[0]


def test_a_lock_of_the_program_is_named_and_so_is_the_line_that_took_it() -> None:
    """The culprit stays the slow line, which stands under the lock."""
    verdict = told(RESTS)

    assert "for the lock 'lock' while thread board rests at send (ochre.py:19)" in verdict.summary
    assert verdict.summary.endswith("it took the lock at publish (ochre.py:16)")
    assert [one.frame for one in verdict.culprits] == ["send (ochre.py:19)"]
