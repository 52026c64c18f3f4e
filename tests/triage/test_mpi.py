"""A rank that waits in an exchange of mpi4py spins at a full core: that is neither a computation nor, by itself, a hang."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch_probes.readings import Frame, ProcessEnded, SourceLine, Stack, Thread
from tests.triage.rank_looks import FIRST, FOR_EVER, MODULE, STOPPED, TRAIN, job, judged, looks, stands, uses

LINE = 33
EXCHANGE = SourceLine(file=TRAIN, line=LINE, text="comm.Allreduce(g, out)", calls=("comm.Allreduce",))
RECEIVES = SourceLine(file=TRAIN, line=LINE, text="comm.Recv(g, source=0)", calls=("comm.Recv",))
SENDS = SourceLine(file=TRAIN, line=LINE, text="comm.Ssend(g, dest=1)", calls=("comm.Ssend",))
COMPUTES = SourceLine(file=TRAIN, line=LINE, text="np.linalg.eigh(g)", calls=("np.linalg.eigh",))
UNTIL = STOPPED + 80.0  # beyond the patience


def spinning(line: SourceLine, ranks: int = 4, elsewhere: bool = True) -> History:
    """Ranks that run in one line without the GIL, but for the first one where that is elsewhere."""
    history = job(ranks)
    history.add(STOPPED, line)
    for pid in range(FIRST + elsewhere, FIRST + ranks):
        spins(history, pid, LINE)
    return history


def spins(history: History, pid: int, line: int) -> None:
    """A rank at a full core in one line, without the GIL."""
    for at in looks(STOPPED, UNTIL):
        ran = 5.0 + 0.99 * (at - STOPPED)
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=ran, run_seconds=ran,
                               voluntary_switches=50, ran_ago_seconds=0.01, read_calls=1, write_calls=1))  # fmt: skip
        history.add(at, Stack(pid=pid, tid=pid, frames=(Frame("sync", TRAIN, line), MODULE), samples=10,
                              span_seconds=0.5, owns_gil=False))  # fmt: skip
    uses(history, pid, 0.99, 0.0, UNTIL)


def test_ranks_that_stay_in_a_collective_of_mpi_after_one_has_ended_hang() -> None:
    """They use a full core each; not as sure as other hangs, for it may be another communicator's."""
    history = spinning(EXCHANGE)
    history.add(STOPPED, ProcessEnded(pid=FIRST, start_ticks=FIRST, exit_code=0))

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "stalled_collective", 0.8)
    assert verdict.culprits[0].pid == FIRST
    assert "ranks 1, 2, 3 wait for it: comm.Allreduce(g, out)" in verdict.summary


def test_that_ranks_compute_is_no_verdict_where_they_are_in_an_exchange() -> None:
    """All are in it, which may be slow."""
    verdict = judged(spinning(EXCHANGE, elsewhere=False), UNTIL)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert (verdict.suspect.state, verdict.suspect.cause) == ("busy", "computing_on_host")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (SENDS, "every rank sends and none receives: comm.Ssend(g, dest=1) at sync (train.py:33)"),
        (RECEIVES, "every rank waits to receive and none sends"),
    ],
)
def test_ranks_that_all_send_hang_where_steps_were_counted_and_come_no_more(line: SourceLine, says: str) -> None:
    """What all send nobody takes."""
    history = spinning(line, elsewhere=False)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert says in verdict.summary


def test_ranks_in_different_exchanges_wait_for_each_other() -> None:
    """One receives what nobody sends, for the others are in a collective."""
    history = spinning(EXCHANGE)
    history.add(STOPPED, msgspec.structs.replace(RECEIVES, line=LINE + 1))
    spins(history, FIRST, LINE + 1)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert "rank 0 is in comm.Recv(g, source=0) at sync (train.py:34); rank 1 is in comm.Allreduce" in verdict.summary


def test_after_a_rank_has_ended_nobody_is_said_to_compute_in_an_exchange() -> None:
    """Of whom a rank waits to receive, its line does not tell."""
    history = spinning(RECEIVES)
    history.add(STOPPED, ProcessEnded(pid=FIRST, start_ticks=FIRST, exit_code=0))

    verdict = judged(history, UNTIL)

    assert "computing_on_host" not in {verdict.cause, *(one.cause for one in verdict.findings)}


@pytest.mark.parametrize(("line", "ranks"), [(COMPUTES, 4), (EXCHANGE, 1)])
def test_any_other_call_and_a_rank_without_others_computes(line: SourceLine, ranks: int) -> None:
    """A single rank's exchange is a copy."""
    verdict = judged(spinning(line, ranks, elsewhere=False), UNTIL)

    assert (verdict.state, verdict.cause) == ("busy", "computing_on_host")
    assert verdict.confidence > 0.6


def test_a_rank_that_waits_for_a_lock_while_the_others_spin_for_it_is_blamed() -> None:
    """Their cores are no sign that anything goes on."""
    history = spinning(EXCHANGE)
    stands(history, FIRST, (Frame("take", TRAIN, 50), MODULE), FOR_EVER, UNTIL)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict.culprits[0].pid == FIRST
