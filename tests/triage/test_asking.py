"""A rank that asks again and again for what only others can change, a flag in shared memory: does anybody work who may write it?"""

import pytest

from perfwatch.triage.history import History
from perfwatch_probes.readings import Frame, SourceLine, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
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

SOLVER = "/app/solver.py"
FLAG: Frames = (Frame("wait", TRAIN, 45), MODULE)
SOLVES: Frames = (Frame("relax", SOLVER, 15), Frame("<module>", SOLVER, 60))
SPINS = SourceLine(file=TRAIN, line=45, text="while self.buf[0] == 0:", loops=("while",), only_tests=True)
NAPS = SourceLine(file=TRAIN, line=45, text="time.sleep(0.01)", calls=("time.sleep",), loop_calls=("time.sleep",),
                  loops=("while",), only_tests=True)  # fmt: skip
COMPUTES = SourceLine(file=SOLVER, line=15, text="total += f(x)", calls=("f",), loop_calls=("f",), loops=("for",))
ASKS_TOO = SourceLine(file=SOLVER, line=15, text="while self.buf[1] == 0:", loops=("while",), only_tests=True)
ADVANCES = SourceLine(file=SOLVER, line=15, text="while sim.advance():", calls=("sim.advance",), loop_calls=("sim.advance",),
                      loops=("while",), only_tests=True)  # fmt: skip
CHILD = 400
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.01)
SOON, LATE = STOPPED + 40.0, STOPPED + 80.0


def asks(line: SourceLine, pid: int = FIRST, history: History | None = None) -> History:
    """A rank that stays in that loop since it trained last."""
    history = history or job(1)
    history.add(1.0, line)
    naps = line is NAPS
    runs(history, pid, [FLAG], STOPPED, LATE, share=0.004 if naps else 0.95, wait=NAP if naps else None)
    return history


def started(history: History, line: SourceLine | None, cores: float = 0.95, parent: int = FIRST) -> None:
    """A process that a rank has started: it runs at a line, or does nothing."""
    history.add(1.0, process(CHILD, parent, "python solver.py"))
    uses(history, CHILD, cores, 0.0, LATE)
    if line is None:
        stands(history, CHILD, SOLVES, FOR_EVER, LATE)
        return
    history.add(1.0, line)
    runs(history, CHILD, [SOLVES], STOPPED, LATE, share=cores)


@pytest.mark.parametrize("line", [SPINS, NAPS])
@pytest.mark.parametrize("work", [COMPUTES, ADVANCES])
def test_who_asks_for_what_a_child_that_works_may_write_waits_for_it_perhaps(
    line: SourceLine, work: SourceLine
) -> None:
    """However long; a call in a test may be a step of its work."""
    history = asks(line)
    started(history, work)

    for at in (SOON, LATE):
        verdict = judged(history, at)
        assert (verdict.state, verdict.cause, verdict.confidence) == ("busy", "waiting_on_work", 0.65)
        assert f"; process {CHILD} at relax (solver.py:15) may release it" in verdict.summary


@pytest.mark.parametrize("line", [SPINS, NAPS])
@pytest.mark.parametrize("does", ["nothing", "asks too", "is not there"])
def test_where_nobody_works_who_may_write_it_the_loop_has_no_end(line: SourceLine, does: str) -> None:
    """A child that only waits for an order of the one that waits for its answer burns CPU time, and brings nothing."""
    history = asks(line, FIRST, job(1, trained=line is SPINS))  # attached to when it napped already
    if does != "is not there":
        started(history, ASKS_TOO if does == "asks too" else None, cores=0.95 if does == "asks too" else 0.0)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "endless_python", 0.65)


def test_a_child_whose_main_thread_asks_may_work_in_another() -> None:
    """It waits for its own worker."""
    history = asks(SPINS)
    started(history, ASKS_TOO)
    runs(history, CHILD, [], STOPPED, LATE, tid=CHILD + 1, share=0.9)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


@pytest.mark.parametrize("works", [True, False])
def test_the_others_wait_in_a_collective_for_one_that_asks(works: bool) -> None:
    """Rank 1 is elsewhere, and a child of it computes what it asks for, or does nothing."""
    history = job(2)
    asks(NAPS, FIRST + 1, history)
    started(history, COMPUTES if works else None, cores=0.95 if works else 0.0, parent=FIRST + 1)
    stands(history, FIRST, BARRIER, FOR_EVER, LATE)
    verdict = judged(history, LATE)

    told = ("busy", "waiting_on_work") if works else ("hung", "stalled_collective")
    assert (verdict.state, verdict.cause) == told


def test_ranks_that_spin_for_each_other_never_come_out() -> None:
    """Each of them burns a core, and neither works."""
    history = job(2)
    asks(SPINS, FIRST, history)
    asks(SPINS, FIRST + 1, history)
    for pid in (FIRST, FIRST + 1):
        uses(history, pid, 0.95, 0.0, LATE)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
