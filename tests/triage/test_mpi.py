"""Ranks that exchange by mpi4py: waiting, computing, late."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, ProcessEnded, SourceLine, Stack, Thread
from tests.triage.rank_looks import (
    BEGAN,
    FIRST,
    FOR_EVER,
    MODULE,
    STEP,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)

# A rank that waits in an exchange of mpi4py spins at a full core: that is neither a computation nor, by itself, a hang.


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
        (
            SENDS,
            "every rank sends and none receives: ranks 0, 1, 2, 3 are in comm.Ssend(g, dest=1) at sync (train.py:33)",
        ),
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
    assert (
        "rank 0 is in comm.Recv(g, source=0) at sync (train.py:34); ranks 1, 2, 3 are in comm.Allreduce"
        in verdict.summary
    )


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


# Ranks that exchange by mpi4py: who stands in the exchange waits, and the one that computes meanwhile is late.


MPI_LATENESS_EXCHANGE = SourceLine(file=TRAIN, line=35, text="comm.Allreduce(g, out)", calls=("comm.Allreduce",))
WAITS: Frames = (Frame("<module>", TRAIN, MPI_LATENESS_EXCHANGE.line),)
COUNTS: Frames = (Frame("tally", TRAIN, 21), MODULE)
LISTED = SourceLine(file=TRAIN, line=21, text="seen = [int(v * 4) for v in row]", calls=("int",))


def line(call: str) -> SourceLine:
    """A line of the program that makes this call."""
    return msgspec.structs.replace(MPI_LATENESS_EXCHANGE, text=f"{call}(g)", calls=(call,))


LATE: tuple[Frames, ...] = (*STEP, *[COUNTS] * 6)


def trained(
    called: SourceLine = MPI_LATENESS_EXCHANGE,
    launcher: str = "OMPI_COMM_WORLD",
    first: tuple[Frames, ...] = STEP,
    second: tuple[Frames, ...] = LATE,
) -> Verdict:
    """Two ranks after eighty seconds: the first is in the exchange most of the time, the second counts what it has seen."""
    history = History()
    history.add(BEGAN, called)
    history.add(BEGAN, LISTED)
    for rank, turns in enumerate(((*first, *[WAITS] * 6), second)):
        numbers = {f"{launcher}_RANK": str(rank), f"{launcher}_SIZE": "2"}
        one = process(FIRST + rank, 1, "python train.py", *((None, None) if launcher else (rank, 2)))
        history.add(0.0, msgspec.structs.replace(one, environment=numbers if launcher else {}))
        runs(history, FIRST + rank, turns, BEGAN, STOPPED)
    return judged(history, STOPPED)


@pytest.mark.parametrize(
    "call", ["comm.Allreduce", "self.world.send", "MPI.COMM_WORLD.Recv", "row_comm.gather", "req.wait"]
)
def test_the_rank_that_computes_is_late_and_the_one_in_the_exchange_is_not_accused(call: str) -> None:
    """It spins at a full core at its own line."""
    verdict = trained(line(call))

    assert (verdict.state, verdict.cause) == ("slow", "straggling_rank")
    assert (verdict.culprits[0].rank, verdict.culprits[0].frame) == (1, "tally (train.py:21)")
    assert "at tally" in verdict.summary


@pytest.mark.parametrize("launcher", ["PMI", "OMPI_COMM_WORLD"])
def test_every_launcher_of_mpi_counts(launcher: str) -> None:
    """MPICH's and Slurm's say less than Open MPI's, and enough."""
    assert trained(launcher=launcher).cause == "straggling_rank"


@pytest.mark.parametrize("call", ["self.client.send", "parts.gather", "queue.wait", "commit.send"])
def test_a_programs_own_send_is_no_exchange(call: str) -> None:
    """Only what a communicator or a request is called is asked for such names."""
    assert trained(line(call)).cause != "straggling_rank"


@pytest.mark.parametrize("call", ["comm.Allreduce", "comm.send"])
def test_without_mpi_no_line_is_an_exchange(call: str) -> None:
    """torchrun starts no MPI."""
    assert trained(line(call), launcher="").cause != "straggling_rank"


def test_a_rank_that_only_serves_the_others_waits_by_design() -> None:
    """It makes no backward pass of its own: the one that trains is not late for it."""
    assert trained(first=STEP[2:]).cause != "straggling_rank"


def test_an_exchange_is_no_work_of_a_ranks_own() -> None:
    """Both wait as long; that each also counts in Python for a sixth of the time is no loading that workers would do."""
    first = (*STEP, COUNTS, COUNTS)

    assert trained(first=first, second=(*first, *[WAITS] * 6)).state == "healthy"
