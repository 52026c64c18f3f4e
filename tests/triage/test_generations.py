"""An elastic job that goes on with fewer nodes: the ranks of the generation before are nobody that the new ones wait for."""

import signal

import pytest
from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.ranks.collectives import standings
from perfwatch_probes.readings import Communicator, Frame, GroupMember, Process, ProcessEnded
from tests.sessions import session
from tests.triage.rank_looks import BARRIER, BEGAN, FOR_EVER, MODULE, STEP, STOPPED, TORCH, TRAIN, process, runs, stands

SCORES = tuple(
    (Frame("forward", TORCH + f"nn/modules/{name}.py", 7), Frame("evaluate", TRAIN, 77), MODULE)
    for name in ("linear", "dropout", "activation")
)
ENDED, UNTIL = 15.0, STOPPED + 30.0


def rank(pid: int, number: int, world_size: int, restarts: int) -> Process:
    """One of torchrun's, pid 10."""
    started = process(pid, 10, "python train.py", number, world_size)
    return structs.replace(started, environment={"TORCHELASTIC_RESTART_COUNT": str(restarts)})


def shrunk(restarts: int) -> History:
    """The other node went: this one's ranks 2 and 3 of 4 are 0 and 1 of 2 now, of which one waits and one evaluates."""
    history = History()
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for pid, number in ((100, 2), (101, 3)):
        history.add(0.0, rank(pid, number, 4, 0))
        history.add(ENDED, ProcessEnded(pid=pid, start_ticks=pid, signal=signal.SIGTERM))
    for pid, number in ((200, 0), (201, 1)):
        history.add(ENDED + 2.0, rank(pid, number, 2, restarts))
        runs(history, pid, STEP, BEGAN, STOPPED)
    stands(history, 200, BARRIER, FOR_EVER, UNTIL)
    runs(history, 201, SCORES, STOPPED, UNTIL)
    history.at = UNTIL
    return history


@pytest.mark.parametrize("restarts", [0, 1], ids=["nodes changed", "a rank failed"])
def test_ranks_of_a_generation_before_are_not_waited_for(restarts: int) -> None:
    """However few there are now, they are all."""
    case = Case(shrunk(restarts), session(root_pids=(10,)))

    assert (case.job.world_size, [one.rank for one in case.job.ranks]) == (2, [0, 1])
    assert case.job.covered
    assert judge(case).state != "hung"


def test_a_rank_that_ends_within_a_generation_is_one_of_it() -> None:
    """Its launcher has started no other since."""
    history = shrunk(0)
    history.add(STOPPED + 1.0, ProcessEnded(pid=201, start_ticks=201, signal=signal.SIGKILL))
    ranks = Case(history, session(root_pids=(10,))).job.ranks

    assert [(one.rank, one.alive) for one in ranks] == [(0, True), (1, False)]


def test_what_was_counted_of_a_generation_before_is_not_about_the_new_one() -> None:
    """Nobody has its numbers."""
    history = shrunk(0)
    members = tuple(
        GroupMember(rank=number, pid=98 + number, host="a", local=True, launched={"AllReduce": 44 - number})
        for number in (2, 3)
    )
    for at in (10.0, 12.0, 14.0, ENDED + 3.0):
        history.add(at, Communicator(communicator="old", size=4, members=members))
    history.at = ENDED + 4.0

    assert standings(Case(history, session(root_pids=(10,)))) == []
