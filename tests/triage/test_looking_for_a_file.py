"""Ranks that look for a lock file again and again: whether one of them hangs depends on what the others do meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.probes.readings import Frame, Wait
from perfwatch.recording import load
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.rules.waiting_for_file import UNOWNED
from perfwatch.triage.verdict import Verdict
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    process,
    runs,
    stands,
    uses,
)

BUILDS_UNDER_A_LOCK = (
    Path(__file__).parent / "recordings" / "waiting_on_work" / "fires" / "rank_that_builds_under_a_lock_file"
)
TAKES = (Frame("acquire", LIB + "site-packages/filelock/_api.py", 300), Frame("prepare", TRAIN, 30), MODULE)
BUILDS: tuple[Frames, ...] = tuple((Frame("build", TRAIN, 40 + line), MODULE) for line in range(3))
STARTS = (Frame("wait", LIB + "subprocess.py", 1264), Frame("compile_ops", TRAIN, 50), MODULE)
CHILD, UNTIL = 300, STOPPED + 90.0
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.05)
BUILDER = Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True)


def looks_for_it(history: History, pid: int) -> None:
    """FileLock's own loop."""
    runs(history, pid, (TAKES,), STOPPED, UNTIL, share=0.004, wait=NAP)
    uses(history, pid, 0.004, 0.0, UNTIL)


def builds_itself(history: History) -> None:
    """Python of the first rank's own."""
    runs(history, FIRST, BUILDS, STOPPED, UNTIL, calls_per_second=100)
    uses(history, FIRST, 0.95, 4e6, UNTIL)


def lets_a_child_build(history: History) -> None:
    """The first rank waits for a compiler."""
    history.add(STOPPED, process(CHILD, FIRST, "cc1plus -O3"))
    stands(history, FIRST, STARTS, BUILDER, UNTIL)
    runs(history, CHILD, (), STOPPED, UNTIL)
    uses(history, CHILD, 0.95, 1e4, UNTIL)


def verdict_of(history: History) -> Verdict:
    """Well beyond the patience."""
    return judged(history, UNTIL)


@pytest.mark.parametrize(("works", "worker"), [(builds_itself, FIRST), (lets_a_child_build, CHILD)])
def test_who_waits_for_a_lock_file_is_no_hang_while_another_rank_works(
    works: Callable[[History], None], worker: int
) -> None:
    """It downloads, builds or computes, or what it has started does: the lock is let go after that."""
    history = job(3, trained=False)
    works(history)
    for rank in (1, 2):
        looks_for_it(history, FIRST + rank)

    verdict = verdict_of(history)

    assert verdict.state != "hung"
    assert "waiting_for_file" not in {one.cause for one in verdict.findings}
    assert worker in {culprit.worker_pid or culprit.pid for culprit in verdict.culprits}


def test_a_rank_that_waits_for_another_ones_lock_file_is_not_even_suspected() -> None:
    """Recorded: the first rank lets a child compress a corpus under a FileLock, for which the other one waits."""
    verdict = diagnose(load(BUILDS_UNDER_A_LOCK), expected_of(BUILDS_UNDER_A_LOCK).at)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert verdict.findings == ()


def test_ranks_that_all_look_for_a_lock_file_wait_for_one_that_was_left_behind() -> None:
    """Nobody of the job has it."""
    history = job(3, trained=False)
    for rank in range(3):
        looks_for_it(history, FIRST + rank)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.confidence > UNOWNED


def test_beside_a_rank_that_is_elsewhere_it_is_not_sure_whose_fault_the_lock_file_is() -> None:
    """That one may hold it, though it does nothing."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, UNTIL)
    looks_for_it(history, FIRST + 1)

    found = {one.cause: one for one in verdict_of(history).findings}

    assert found["waiting_for_file"].confidence <= UNOWNED
