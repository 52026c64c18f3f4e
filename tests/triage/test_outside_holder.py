"""A lock that a process outside of the job holds: it is watched first, and not known to stay unless all its threads do."""

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, ProcessUsage, SourceLine, Thread, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    MODULE,
    STOPPED,
    Frames,
    job,
    judged,
    looks,
    runs,
    stands,
    uses,
)

LOCKS: Frames = (Frame("cached", "/app/train.py", 35), MODULE)
LOCK = Wait(call="flock", number=73, kind="lock", fd=5, forever=True)
OUTSIDE, STARTED = 700, 710
UNTIL = STOPPED + 80.0
RECEIVES = Wait(call="recvfrom", number=45, kind="recv", fd=4, forever=True)
REAPS = Wait(call="wait4", number=61, kind="child", child_pid=STARTED, forever=True)
SHARED = Wait(call="futex", number=202, kind="futex", forever=True, shared=True)
PAUSES = Wait(call="pause", number=34, kind="other", forever=True)


def sleeps(seconds: float) -> Wait:
    """One sleep of so long."""
    return Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=seconds)


def locked(since: float = STOPPED, started: tuple[int, ...] = (), ranks: int = 1) -> History:
    """A rank that waits for a lock, of which it is known since a moment who holds it; others wait for the rank."""
    history = job(ranks)
    for rank in range(1, ranks):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, UNTIL)
    stands(history, FIRST, LOCKS, LOCK, UNTIL)
    for at in looks(since, UNTIL):
        history.add(at, Descriptor(pid=FIRST, fd=5, kind="file", target="/data/cache.lock", lock_holders=(OUTSIDE,),
                                   holders_run=("python sync.py",), holders_started=started))  # fmt: skip
    return history


def rests(history: History, wait: Wait, pid: int = OUTSIDE, since: float = STOPPED) -> None:
    """A process whose only thread stands in one call."""
    stands(history, pid, (), wait, UNTIL)
    uses(history, pid, 0.0, 0.0, UNTIL, since)


@pytest.mark.parametrize("wait", [RECEIVES, SHARED, sleeps(86400.0), REAPS])
def test_a_holder_outside_that_may_wait_for_something_that_comes_is_accused_with_less_confidence(wait: Wait) -> None:
    """A slow server's answer, a child of its own, the end of a day."""
    history = locked()
    rests(history, wait)
    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "waiting_for_file", 0.65)
    assert f"pid {OUTSIDE} (python sync.py) outside of the job, which waits in {wait.call}" in verdict.summary


@pytest.mark.parametrize("wait", [FOR_EVER, PAUSES])
def test_a_holder_outside_whose_threads_all_wait_for_each_other_will_not_let_go(wait: Wait) -> None:
    """The kernel says that they have no deadline."""
    history = locked()
    rests(history, wait)
    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.confidence >= 0.9


def test_one_thread_of_a_holder_that_was_not_looked_at_may_do_anything() -> None:
    """Two are counted, one was read."""
    history = locked()
    rests(history, FOR_EVER)
    history.add(UNTIL, ProcessUsage(pid=OUTSIDE, state="S", threads=2, cpu_seconds=0.0, major_faults=0, minor_faults=0,
                                    resident_bytes=2**30))  # fmt: skip

    assert judged(history, UNTIL).confidence == 0.65


def test_a_holder_outside_that_is_stopped_will_not_let_go() -> None:
    """And that is said of it."""
    history = locked()
    uses(history, OUTSIDE, 0.0, 0.0, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, Thread(pid=OUTSIDE, tid=OUTSIDE, name="sync", state="T", cpu_seconds=1.0, run_seconds=1.0))
    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.confidence >= 0.9
    assert "outside of the job, which is stopped" in verdict.summary


@pytest.mark.parametrize("sleeper", [OUTSIDE, STARTED])
def test_a_holder_outside_that_sleeps_until_a_known_moment_is_waited_for(sleeper: int) -> None:
    """Itself, or what it has started."""
    history = locked(started=(STARTED,))
    rests(history, sleeps(200.0), sleeper)
    rests(history, REAPS, OUTSIDE + STARTED - sleeper)
    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "wakes in 2 min 00 s" in verdict.summary


def test_a_holder_outside_that_sleeps_a_little_again_and_again_may_do_so_for_ever() -> None:
    """It asks for something that nobody knows."""
    history = locked()
    runs(history, OUTSIDE, (), STOPPED, UNTIL, share=0.001, wait=sleeps(1.0), switches_per_second=1.0)
    uses(history, OUTSIDE, 0.001, 0.0, UNTIL)
    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "waiting_for_file", 0.65)


@pytest.mark.parametrize(("watched", "state"), [(1.5, "inconclusive"), (4.0, "hung")])
def test_a_holder_outside_is_watched_before_it_is_accused(watched: float, state: str) -> None:
    """However long the kernel says that the rank has waited."""
    history = locked(UNTIL - watched)
    rests(history, RECEIVES, since=UNTIL - watched)
    verdict = judged(history, UNTIL)

    assert verdict.state == state
    assert (verdict.cause or (verdict.suspect and verdict.suspect.cause)) == "waiting_for_file"


@pytest.mark.parametrize(("known", "state"), [(4.0, "inconclusive"), (12.0, "hung")])
def test_a_holder_outside_that_nobody_may_look_at_is_not_waited_for_long(known: float, state: str) -> None:
    """It is hidden, or is another user's."""
    verdict = judged(locked(UNTIL - known), UNTIL)

    assert verdict.state == state
    assert verdict.confidence <= 0.65


@pytest.mark.parametrize(("share", "state"), [(0.9, "busy"), (0.0, "hung")])
def test_what_a_holder_outside_has_started_works_for_it(share: float, state: str) -> None:
    """A script that waits for a copy."""
    history = locked(started=(STARTED,))
    rests(history, REAPS)
    runs(history, STARTED, (), STOPPED, UNTIL, share=share) if share else rests(history, RECEIVES, STARTED)
    uses(history, STARTED, share, 0.0, UNTIL)

    assert judged(history, UNTIL).state == state


@pytest.mark.parametrize(("wait", "state"), [(RECEIVES, "hung"), (sleeps(200.0), None)])
def test_ranks_that_wait_for_one_at_such_a_lock_are_told_no_more_surely(wait: Wait, state: str | None) -> None:
    """Whichever rule tells it."""
    history = locked(ranks=3)
    rests(history, wait)
    verdict = judged(history, UNTIL)

    assert (verdict.state if verdict.state == "hung" else None) == state
    assert verdict.confidence <= 0.65


TRIES: Frames = (Frame("note", "/app/train.py", 24), MODULE)
SEEN_FOR = 6.0  # seconds for which the rank was looked at


def tries_again(began: float) -> History:
    """A rank that was looked at for some seconds only, napping in a call that tries again until others let go of a file."""
    history = job(1, trained=False)
    runs(history, FIRST, (TRIES,), began, began + SEEN_FOR, share=0.001, wait=sleeps(0.1), switches_per_second=10.0)
    uses(history, FIRST, 0.001, 0.0, began + SEEN_FOR, began)
    history.add(
        began,
        SourceLine(file="/app/train.py", line=24, text="journal.execute(insert, values)", calls=("journal.execute",)),
    )
    for at in looks(began, began + SEEN_FOR):
        history.add(at, Descriptor(pid=FIRST, fd=5, kind="file", target="/data/losses.sqlite", lock_holders=(OUTSIDE,)))
    return history


@pytest.mark.parametrize(("rested", "state"), [(100.0, "hung"), (10.0, "inconclusive")])
def test_a_lock_is_kept_for_as_long_as_its_holder_has_not_run(rested: float, state: str) -> None:
    """Whoever tries again and again leaves no trace of when it began, but what does not run takes no lock."""
    began = STOPPED + rested
    history = tries_again(began)
    stands(history, OUTSIDE, (), sleeps(86400.0), began + SEEN_FOR)
    uses(history, OUTSIDE, 0.0, 0.0, began + SEEN_FOR, began)
    verdict = judged(history, began + SEEN_FOR)

    assert verdict.state == state
    assert verdict.confidence <= 0.65
    if state == "hung":
        assert f"pid {OUTSIDE} holds the lock, and has not run: last ran 1 min 46 s ago" in told(verdict)


def test_a_holder_of_whose_threads_one_is_unknown_may_have_taken_the_lock_a_moment_ago() -> None:
    """Two are counted, one was read."""
    began = STOPPED + 100.0
    history = tries_again(began)
    stands(history, OUTSIDE, (), sleeps(86400.0), began + SEEN_FOR)
    for at in looks(began, began + SEEN_FOR):
        history.add(at, ProcessUsage(pid=OUTSIDE, state="S", threads=2, cpu_seconds=0.0, major_faults=0, minor_faults=0,
                                     resident_bytes=2**30))  # fmt: skip

    assert judged(history, began + SEEN_FOR).state == "inconclusive"


def told(verdict: Verdict) -> list[str]:
    """Its evidence in words."""
    return [f"{one.entity} {one.claim}: {one.observed}".removesuffix(" (kernel)") for one in verdict.evidence]
