"""Of a process that is seen to move data no verdict says that it hangs, unless its end is one that no work heals."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.contradicted import uncontradicted
from perfwatch.verdict import Culprit, Finding
from perfwatch_probes.readings import Thread
from tests.sessions import session
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, STOPPED, job, stands

WORKER = 300


def finding(state: str, cause: str, confidence: float, worker: int = WORKER) -> Finding:
    """About a worker of the first rank."""
    return Finding(cause=cause, state=state, summary="", confidence=confidence, owner="user_code",
                   culprits=(Culprit(pid=FIRST, rank=0, worker_pid=worker),))  # fmt: skip


HUNG = finding("hung", "stuck_worker", 0.98)
MOVES_DATA = finding("busy", "waiting_on_work", 0.88)


def case() -> Case:
    """One rank, which stands in a call."""
    history = job(1)
    stands(history, FIRST, BARRIER, FOR_EVER, STOPPED + 10.0)
    history.at = STOPPED + 10.0
    return Case(history, session(root_pids=(FIRST,)))


def test_a_process_that_moves_data_does_not_hang() -> None:
    """Whichever rule comes first in the catalogue."""
    assert uncontradicted(case(), [HUNG, MOVES_DATA]) == [MOVES_DATA]


@pytest.mark.parametrize(
    "beside",
    [
        finding("busy", "waiting_on_work", 0.88, worker=WORKER + 1),
        finding("busy", "waiting_on_work", 0.72),
        finding("busy", "computing_on_host", 0.85),
        finding("busy", "starting", 0.92),
        finding("slow", "starved_by_transforms", 0.95),
    ],
    ids=["another process", "CPU time alone", "a core", "the start of the program", "slow"],
)
def test_nothing_else_speaks_against_a_hang(beside: Finding) -> None:
    """Who spins for a card, or for the other ranks, uses a core too."""
    assert uncontradicted(case(), [HUNG, beside]) == [HUNG, beside]


def test_a_process_that_was_stopped_hangs_whatever_else_moves() -> None:
    """No byte wakes it."""
    stopped = case()
    stopped.history.add(stopped.at, Thread(pid=FIRST, tid=FIRST, name="python", state="T", cpu_seconds=5.0))
    blamed = finding("hung", "stopped", 0.98, worker=FIRST)
    moves_data = finding("busy", "waiting_on_work", 0.88, worker=FIRST)

    assert uncontradicted(case(), [blamed, moves_data]) == [moves_data]
    assert uncontradicted(stopped, [blamed, moves_data]) == [blamed, moves_data]
