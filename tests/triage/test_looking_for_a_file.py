"""Ranks that look for a lock file again and again: whether one of them hangs depends on what the others do meanwhile."""

from collections.abc import Callable

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.rules.files import UNOWNED
from perfwatch.verdict import Level, Verdict
from perfwatch_probes.readings import Frame, SourceLine, Thread, Wait
from tests.recorded import RECORDINGS, load_case
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    process,
    runs,
    stands,
    uses,
)

BUILDS_UNDER_A_LOCK = RECORDINGS / "waiting_on_work" / "fires" / "rank_that_builds_under_a_lock_file"
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
    verdict = diagnose(load_case(BUILDS_UNDER_A_LOCK), expected_of(BUILDS_UNDER_A_LOCK).at)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert verdict.findings == ()


def test_ranks_that_all_look_for_a_lock_file_wait_for_one_that_was_left_behind() -> None:
    """No process of the job holds it; one outside of the job may."""
    history = job(3, trained=False)
    for rank in range(3):
        looks_for_it(history, FIRST + rank)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.confidence == Level.MEDIUM


def test_beside_a_rank_that_is_elsewhere_it_is_not_sure_whose_fault_the_lock_file_is() -> None:
    """That one may hold it, though it does nothing."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, UNTIL)
    looks_for_it(history, FIRST + 1)

    found = {one.cause: one for one in verdict_of(history).findings}

    assert found["waiting_for_file"].confidence <= UNOWNED


ROUND_SECONDS, WORK_SECONDS = 360.0, 60.0
POLLS = (Frame("wait_for", TRAIN, 30), MODULE)
TESTS_FOR_IT = SourceLine(
    file=TRAIN, line=30, text="time.sleep(1)", calls=("time.sleep",), loop_calls=("os.path.exists",), loops=("while",)
)
EVALUATES: tuple[Frames, ...] = tuple(
    (Frame("forward", TORCH + "nn/modules/linear.py", 125), Frame("evaluate", TRAIN, 40 + line), MODULE)
    for line in range(3)
)


def takes_turns(rounds: int, work: tuple[Frames, ...], pause_seconds: float) -> History:
    """A minute of work, and five in which it looks for a file; with no work only that."""
    history = History()
    history.add(0.0, process(FIRST, 1, "python follow.py"))
    history.add(1.0, TESTS_FOR_IT)
    for number in range(rounds):
        began = number * ROUND_SECONDS
        waits = began + (WORK_SECONDS if work else 0.0)
        runs(history, FIRST, work, began, waits)
        nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=pause_seconds)
        runs(history, FIRST, (POLLS,), waits, began + ROUND_SECONDS, share=0.0003, wait=nap)
    return history


@pytest.mark.parametrize(
    ("history", "state"),
    [
        (takes_turns(1, EVALUATES, 1.0), "inconclusive"),  # the next checkpoint
        (takes_turns(2, EVALUATES, 1.0), "inconclusive"),
        (takes_turns(1, (), 10.0), "inconclusive"),  # before the first one
        (takes_turns(2, STEP, 1.0), "inconclusive"),  # rollouts of another job: they came before
        (takes_turns(1, STEP, 1.0), "hung"),
        (takes_turns(1, (), 1.0), "hung"),  # a flag of its own job, or a lock
    ],
)
def test_who_takes_what_another_job_brings_is_not_hung_between_two_files(history: History, state: str) -> None:
    """A file that never came before, to a job that trains or asks all the time, is missed."""
    verdict = judged(history, max(one.at for one in history.series(Thread, FIRST, FIRST)))

    assert verdict.state == state


def test_a_deadline_that_was_read_half_is_no_long_sleep() -> None:
    """The program was writing it at that moment: recorded once in a minute of naps of a tenth of a second, as 141 days."""
    history = takes_turns(1, (), 0.1)
    torn = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=12_215_313.8)
    looks = history.series(Thread, FIRST, FIRST)
    history.add(looks[80].at + 0.1, msgspec.structs.replace(looks[80].reading, wait=torn))

    verdict = judged(history, looks[-1].at)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
