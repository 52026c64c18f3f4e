"""A wait inside of native code is no lock of Python's: what works for it is looked at, and nothing is sure before the patience is over."""

from dataclasses import replace

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Process, ProcessUsage, SourceLine, Stack, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session

RECEIVES = RECORDINGS / "downloading" / "fires" / "native_threads_receive"
SILENT = RECORDINGS / "deadlocked_locks" / "fires" / "native_threads_wait_for_a_silent_server"

PID, NATIVE = 700, 701
TRAIN, LIBRARY = "/app/train.py", "/usr/lib/python3.11/site-packages/pyarrow/parquet/core.py"
MODULE = Frame("<module>", TRAIN, 60)
IN_LIBRARY = (Frame("read", LIBRARY, 1540), Frame("load_corpus", TRAIN, 15), MODULE)
IN_PROGRAM = (Frame("load_corpus", TRAIN, 15), MODULE)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
TIMED = Wait(call="futex", number=202, kind="futex", remaining_seconds=0.6)
LOOKS_UP = Wait(call="poll", number=7, kind="poll", remaining_seconds=0.9)
SECONDS = 40  # of silence: much longer than for a lock, shorter than the patience


def job(
    frames: tuple[Frame, ...],
    wait: Wait = LOCK,
    line: SourceLine | None = None,
    native: Wait = LOOKS_UP,
    share: float = 0.0,
    threads: int = 1,
    state: str = "S",
) -> History:
    """A training thread that waits, beside native threads that use this share of a core each."""
    history = History()
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    if line is not None:
        history.add(0.5, line)
    for second in range(1, SECONDS + 1):
        at = float(second)
        history.add(at, Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                               voluntary_switches=50, ran_ago_seconds=at, wait=wait))  # fmt: skip
        history.add(at, Stack(pid=PID, tid=PID, frames=frames, samples=20, span_seconds=1.0, thread="MainThread"))
        for tid in range(NATIVE, NATIVE + threads):
            history.add(at, Thread(pid=PID, tid=tid, name="io", state=state, cpu_seconds=at * share, wait=native,
                                   run_seconds=at * share, voluntary_switches=second * 20, ran_ago_seconds=0.1))  # fmt: skip
        history.add(at, ProcessUsage(pid=PID, state="S", threads=1 + threads, cpu_seconds=5.0, major_faults=0,
                                     minor_faults=0, resident_bytes=0))  # fmt: skip
    return history


def judged(history: History, **conditions: float) -> Verdict:
    """At the end of what was seen."""
    history.at = float(SECONDS)
    return judge(Case(history, session(root_pids=(PID,), conditions={"patience_seconds": 60.0, **conditions})))


@pytest.mark.parametrize("wait", [LOCK, TIMED])
def test_a_librarys_native_call_is_given_the_full_patience(wait: Wait) -> None:
    """Forty seconds without a sign of life are a suspicion, and no deadlock."""
    verdict = judged(job(IN_LIBRARY, wait))

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.decides_in_seconds == pytest.approx(20.0, abs=3.0)


def test_one_that_outlasts_the_patience_is_told_but_not_as_sure() -> None:
    """For whom it waits is not known."""
    verdict = judged(job(IN_LIBRARY), patience_seconds=20.0)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "deadlocked_locks", 0.65)
    assert "native code of pyarrow" in verdict.summary


def test_thread_whose_end_is_waited_for_is_named() -> None:
    """A pthread_join in native code is told as such."""
    joins = Wait(call="futex", number=202, kind="futex", forever=True, joined_tid=NATIVE)

    verdict = judged(job(IN_LIBRARY, joins), patience_seconds=20.0)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert f"the end of its thread {NATIVE}" in verdict.wait_chain[0].waits_for


def test_native_threads_that_work_a_little_each_work_together() -> None:
    """Each of eight uses 3 % of a core: what they use in all counts, and not the busiest of them."""
    together = judged(job(IN_LIBRARY, share=0.03, threads=8), patience_seconds=20.0)
    alone = judged(job(IN_LIBRARY, share=0.03), patience_seconds=20.0)

    assert (together.state, together.cause) == ("busy", "waiting_on_work")
    assert alone.state == "hung"


def test_a_thread_without_a_line_is_told_without_one() -> None:
    """Of a native thread that works no stack is known."""
    verdict = judged(job(IN_LIBRARY, share=0.8), patience_seconds=20.0)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "None" not in verdict.summary


@pytest.mark.parametrize(("package", "follows"), [("redis", False), ("pyarrow", True)])
def test_a_thread_of_python_that_listens_is_followed_only_within_the_same_library(package: str, follows: bool) -> None:
    """What a program has started beside has nothing to do with the call of a library."""
    history = job(IN_LIBRARY)
    reads = Wait(call="recvfrom", number=45, kind="recv", fd=7, forever=True)
    frames = (
        Frame("read", f"/usr/lib/python3.11/site-packages/{package}/socket.py", 60),
        Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    )
    for second in range(1, SECONDS + 1):
        at = float(second)
        history.add(at, Stack(pid=PID, tid=PID + 50, frames=frames, samples=20, span_seconds=1.0, thread="listener"))
        history.add(at, Thread(pid=PID, tid=PID + 50, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                               voluntary_switches=50, ran_ago_seconds=at, wait=reads))  # fmt: skip

    verdict = judged(history, patience_seconds=20.0)

    assert (verdict.cause == "blocked_network") is follows


def test_a_native_thread_that_waits_for_a_disk_is_at_work() -> None:
    """State D: it reads through a mapping, and neither CPU time nor a count of bytes shows it."""
    assert judged(job(IN_LIBRARY, state="D"), patience_seconds=20.0).state == "inconclusive"


def test_a_line_that_takes_a_lock_waits_for_a_lock_be_it_a_librarys() -> None:
    """The text of the innermost line tells it."""
    line = SourceLine(file=LIBRARY, line=1540, text="with self._lock:", within=("self._lock",))

    verdict = judged(job(IN_LIBRARY, line=line))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert "is blocked with no timeout on a lock" in verdict.summary


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (None, "inconclusive"),
        (SourceLine(file=TRAIN, line=15, text="lock.acquire()", calls=("lock.acquire",)), "hung"),
        (SourceLine(file=TRAIN, line=15, text="with locks.of(key):", calls=("locks.of",)), "hung"),
        (SourceLine(file=TRAIN, line=15, text="blocks.read(4)", calls=("blocks.read",)), "inconclusive"),
    ],
)
def test_of_the_programs_own_line_the_text_tells_whether_it_takes_a_lock(line: SourceLine | None, state: str) -> None:
    """One that was not read may be either, where a native thread is there that is not parked."""
    assert judged(job(IN_PROGRAM, line=line)).state == state


def test_a_line_that_was_not_read_takes_a_lock_where_no_native_thread_could_do_anything() -> None:
    """Nearly all waits of a program's own line are for locks."""
    assert judged(job(IN_PROGRAM, threads=0)).state == "hung"


def test_where_every_thread_waits_in_a_futex_nobody_can_end_a_native_wait() -> None:
    """Mutexes of C++ that were taken in opposite order: only a thread of the same process can wake another."""
    verdict = judged(job(IN_LIBRARY, native=LOCK))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.confidence > 0.8


def test_a_wait_for_an_event_with_a_timeout_ends_by_itself() -> None:
    """``event.wait(30)``: nobody else is left, and yet it goes on."""
    frames = (Frame("wait", "/usr/lib/python3.11/threading.py", 331), *IN_PROGRAM)

    timed, endless = judged(job(frames, TIMED, native=LOCK)), judged(job(frames, LOCK, native=LOCK))

    assert (timed.state, endless.state) == ("inconclusive", "hung")
    assert "with a timeout" in timed.summary


def test_bytes_on_the_connections_of_native_threads_are_a_download() -> None:
    """Of a real reader in C; without a look at its connections, the bytes that its threads read make work likely."""
    recording, at = load_case(RECEIVES), expected_of(RECEIVES).at
    descriptors = tuple(one for one in recording.records if type(one.reading).__name__ != "Descriptor")

    seen, unseen = diagnose(recording, at), diagnose(replace(recording, records=descriptors), at)

    assert (seen.state, seen.cause, seen.confidence) == ("busy", "downloading", 0.95)
    assert unseen.suspect is not None
    assert (unseen.suspect.state, unseen.suspect.cause) == ("busy", "waiting_on_work")


def test_a_server_that_says_nothing_is_suspected_for_the_whole_patience() -> None:
    """Of a real reader in C whose connections are open and silent: sixty seconds, and below what is called sure."""
    recording, at = load_case(SILENT), expected_of(SILENT).at
    early = at - 20.0
    before = tuple(one for one in recording.records if one.at <= early)

    assert diagnose(replace(recording, records=before), early).state == "inconclusive"
    assert diagnose(recording, at).confidence == 0.65
