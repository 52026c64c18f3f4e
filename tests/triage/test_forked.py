"""Forks of a pool that wait for a lock which a thread of their parent held: who is named, and what is advised."""

from functools import partial

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Process, Reading, Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

CASE = RECORDINGS / "stuck_worker" / "fires" / "pool_forked_under_a_lock"
TRAINER, FIRST, SECOND = 24161, 24183, 24184


judged = partial(retold, CASE)


def test_a_fork_that_waits_alone_for_a_lock_is_told_what_a_fork_does_to_locks() -> None:
    """The pool was forked while a thread of the trainer wrote the cache under its lock."""
    verdict = judged()

    assert (verdict.state, verdict.cause) == ("hung", "stuck_worker")
    assert f"pid {FIRST} is a fork of pid {TRAINER} and has no other thread" in verdict.next[0]
    assert "spawn or forkserver" in verdict.next[0]


def test_of_two_that_fell_silent_together_the_same_is_named_at_every_look() -> None:
    """Milliseconds lie between them, and the looks at them are as far apart."""

    def looked_at_later(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.pid == SECOND and reading.ran_ago_seconds is not None:
            return msgspec.structs.replace(reading, ran_ago_seconds=reading.ran_ago_seconds + 0.05)
        return reading

    assert judged().summary.startswith(f"child process {FIRST} at ids")
    assert judged(looked_at_later).summary.startswith(f"child process {FIRST} at ids")


def test_one_that_fell_silent_long_before_the_other_is_named() -> None:
    """The other one came to wait for something else meanwhile."""

    def before(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.pid == SECOND and reading.ran_ago_seconds is not None:
            return msgspec.structs.replace(reading, ran_ago_seconds=reading.ran_ago_seconds + 5.0)
        return reading

    assert judged(before).summary.startswith(f"child process {SECOND} at ids")


def test_a_spawned_worker_inherits_no_lock() -> None:
    """Its command is multiprocessing's own."""

    def spawned(reading: Reading) -> Reading:
        if isinstance(reading, Process) and reading.pid in (FIRST, SECOND):
            command = (
                "python",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main()",
                "--multiprocessing-fork",
            )
            return msgspec.structs.replace(reading, command=command)
        return reading

    verdict = judged(spawned)

    assert verdict.cause == "stuck_worker"
    assert not [one for one in verdict.next if "fork of" in one]


def test_two_locks_in_one_process_are_not_laid_to_its_fork() -> None:
    """There another thread of the worker holds what it waits for."""
    case = CASE.parent / "two_locks_in_opposite_order"

    assert not [one for one in diagnose(load_case(case), expected_of(case).at).next if "fork of" in one]
