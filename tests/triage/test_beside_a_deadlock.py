"""Who may own a lock that another thread waits for: a listener beside a deadlock neither hides it nor is blamed for it."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Process, Socket, SourceLine, Stack, Thread, Wait
from tests.sessions import session

PID, FLUSHER, LISTENER, HELPER, CONNECTION = 700, 701, 702, 703, 7
TRAIN, CONTROL, THREADS = "/app/train.py", "/app/control.py", "/usr/lib/python3.11/threading.py"
BOOTSTRAP = Frame("_bootstrap", THREADS, 1002)
TAKES = (Frame("log_metrics", TRAIN, 20), Frame("<module>", TRAIN, 60))
FLUSHES = (Frame("flush", TRAIN, 44), BOOTSTRAP)
LISTENS = (
    Frame("_read_from_socket", "/usr/lib/python3.11/site-packages/redis/_parsers/socket.py", 60),
    Frame("control", CONTROL, 9),
    BOOTSTRAP,
)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
RECEIVES = Wait(call="recvfrom", number=45, kind="recv", fd=CONNECTION, forever=True)
WAITS_SECONDS, SILENT_SECONDS = 90, 95

MAIN = SourceLine(file=TRAIN, line=20, text="with self.lock:", within=("self.lock",))
OTHER = SourceLine(file=TRAIN, line=44, text="with self.buffer_lock:", within=("self.buffer_lock",))
SAME = SourceLine(file=TRAIN, line=44, text="with self.lock:", within=("self.lock",))
BARE = SourceLine(file=CONTROL, line=9, text="for message in channel.listen():", loops=("for",))
HOLDS = SourceLine(file=CONTROL, line=9, text="reply = channel.read()", calls=("channel.read",), within=("job.lock",))


FUTURES = "/usr/lib/python3.11/concurrent/futures"
IN_POOL = (Frame("_worker", f"{FUTURES}/thread.py", 81), BOOTSTRAP)
COLLECTS = (
    Frame("wait", THREADS, 320),
    Frame("wait", THREADS, 622),
    Frame("as_completed", f"{FUTURES}/_base.py", 243),
    Frame("collect", TRAIN, 71),
    BOOTSTRAP,
)
JUST_NOW_SECONDS = 0.4


def judged(*lines: SourceLine, flusher: bool = True, beside: tuple[Frame, ...] = ()) -> Verdict:
    """A training thread that asks for a lock, a flusher that does, and a listener that waits for its next message.

    And one that ran a moment ago, where it is given.
    """
    history = History()
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    for line in lines:
        history.add(1.0, line)
    threads = [(PID, TAKES, LOCK, WAITS_SECONDS), (LISTENER, LISTENS, RECEIVES, SILENT_SECONDS)]
    threads += [(FLUSHER, FLUSHES, LOCK, WAITS_SECONDS)] if flusher else []
    for second in range(20):
        at = 100.0 + second
        for tid, frames, wait, ago in threads:
            history.add(at, Thread(pid=PID, tid=tid, name=f"thread-{tid}", state="S", cpu_seconds=5.0, run_seconds=5.0,
                                   voluntary_switches=50, ran_ago_seconds=float(ago + second), wait=wait))  # fmt: skip
            history.add(at, Stack(pid=PID, tid=tid, frames=frames, samples=20, span_seconds=1.0))
        if beside:
            history.add(at, Thread(pid=PID, tid=HELPER, name="helper", state="S", cpu_seconds=1.0 + 0.001 * second,
                                   run_seconds=1.0 + 0.001 * second, voluntary_switches=50 + second, wait=LOCK,
                                   ran_ago_seconds=JUST_NOW_SECONDS))  # fmt: skip
            history.add(at, Stack(pid=PID, tid=HELPER, frames=beside, samples=20, span_seconds=1.0))
        socket = Socket(family="tcp", state="ESTABLISHED", peer="10.0.0.9:6379", received_bytes=1000,
                        received_ago_seconds=float(SILENT_SECONDS + second))  # fmt: skip
        history.add(at, Descriptor(pid=PID, fd=CONNECTION, kind="socket", target="socket:[1]", socket=socket))
    history.at = 119.5
    return judge(Case(history, session(root_pids=(PID,))))


def test_two_threads_that_stop_at_two_locks_explain_each_other() -> None:
    """A listener whose lines are in no ``with`` has nothing to do with it."""
    verdict = judged(MAIN, OTHER, BARE)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.confidence > 0.9
    assert {one.tid for one in verdict.culprits} == {PID, FLUSHER}


def test_an_idle_worker_of_a_pool_that_just_ran_changes_nothing() -> None:
    """It has done what it was given, and waits for more."""
    verdict = judged(MAIN, OTHER, BARE, beside=IN_POOL)

    assert verdict.confidence > 0.9
    assert {one.tid for one in verdict.culprits} == {PID, FLUSHER}


def test_a_thread_that_went_on_in_the_midst_of_its_work_may_release_one_of_them() -> None:
    """It takes result after result from a pool: then it is no sure deadlock."""
    verdict = judged(MAIN, OTHER, BARE, beside=COLLECTS)

    assert verdict.confidence <= 0.65


def test_a_listener_of_which_no_line_was_read_may_hold_one_of_them() -> None:
    """So it is less sure, and who waits for the locks is named all the same."""
    verdict = judged(MAIN, OTHER)

    assert (verdict.cause, verdict.confidence) == ("deadlocked_locks", 0.65)
    assert LISTENER not in {one.tid for one in verdict.culprits}


@pytest.mark.parametrize(
    ("lines", "flusher"),
    [((MAIN, OTHER, HOLDS), True), ((MAIN, SAME, BARE), True), ((MAIN, BARE), False)],
)
def test_a_thread_that_reads_within_the_lock_is_followed_and_so_is_the_only_one_that_may_hold_it(
    lines: tuple[SourceLine, ...], flusher: bool
) -> None:
    """Two that wait for the same lock do not hold it."""
    verdict = judged(*lines, flusher=flusher)

    assert (verdict.state, verdict.cause) == ("hung", "blocked_network")
    assert verdict.culprits[0].tid == LISTENER
