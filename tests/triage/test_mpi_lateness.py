"""Ranks that exchange by mpi4py: who stands in the exchange waits, and the one that computes meanwhile is late."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, SourceLine
from tests.triage.rank_looks import BEGAN, FIRST, MODULE, STEP, STOPPED, TRAIN, Frames, judged, process, runs

EXCHANGE = SourceLine(file=TRAIN, line=35, text="comm.Allreduce(g, out)", calls=("comm.Allreduce",))
WAITS: Frames = (Frame("<module>", TRAIN, EXCHANGE.line),)
COUNTS: Frames = (Frame("tally", TRAIN, 21), MODULE)
LISTED = SourceLine(file=TRAIN, line=21, text="seen = [int(v * 4) for v in row]", calls=("int",))


def line(call: str) -> SourceLine:
    """A line of the program that makes this call."""
    return msgspec.structs.replace(EXCHANGE, text=f"{call}(g)", calls=(call,))


LATE: tuple[Frames, ...] = (*STEP, *[COUNTS] * 6)


def trained(
    called: SourceLine = EXCHANGE,
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
