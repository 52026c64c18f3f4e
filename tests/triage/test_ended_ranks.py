"""Ranks that have ended while others wait in a collective: which of them are to blame, and when a rank that lives is."""

import signal

import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Communicator as Group
from perfwatch_probes.readings import Frame, GroupMember, Process, ProcessEnded, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    MODULE,
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

SCORES: tuple[Frames, ...] = tuple(
    (Frame("forward", TORCH + f"nn/modules/{name}.py", 7), Frame("evaluate", TRAIN, 77), MODULE)
    for name in ("linear", "dropout", "activation")
)
ASLEEP: Frames = (Frame("poll", TRAIN, 31), MODULE)
PAST_PATIENCE = 75.0


def ended(code: int | None, number: int | None = None, works: bool = True, seconds: float = 30.0) -> History:
    """Rank 2 ends, rank 0 waits in a barrier, and rank 1 evaluates or stands."""
    history = job(3)
    until = STOPPED + seconds
    stands(history, FIRST, BARRIER, FOR_EVER, until)
    if works:
        runs(history, FIRST + 1, SCORES, STOPPED, until)
        uses(history, FIRST + 1, 0.95, 0.0, until)
    else:
        stands(history, FIRST + 1, ASLEEP, Wait(call="futex", number=202, kind="futex", forever=True), until)
    history.add(STOPPED + 1.0, ProcessEnded(pid=FIRST + 2, start_ticks=FIRST + 2, exit_code=code, signal=number))
    return history


def told(history: History, seconds: float = 30.0) -> Verdict:
    """What is said so long after rank 2 went."""
    return judged(history, STOPPED + seconds)


@pytest.mark.parametrize("code", [0, None])
def test_a_rank_that_is_done_is_not_blamed_while_one_that_lives_evaluates(code: int | None) -> None:
    """It may be in no group that the others wait in; how it ended is not known to everybody."""
    assert told(ended(code)).state != "hung"


@pytest.mark.parametrize(("code", "number"), [(1, None), (None, signal.SIGKILL)])
def test_a_rank_that_failed_is_blamed_all_the_same(code: int | None, number: int | None) -> None:
    """Nobody leaves a group so."""
    verdict = told(ended(code, number))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [2]


def test_beside_a_rank_that_is_done_the_one_that_stands_is_to_blame() -> None:
    """It lives, and has not come."""
    verdict = told(ended(0, works=False, seconds=PAST_PATIENCE), PAST_PATIENCE)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [1]


def test_where_all_that_live_wait_it_is_the_one_that_is_gone() -> None:
    """Who else."""
    history = job(3)
    for rank in (0, 1):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, STOPPED + 30.0)
    history.add(STOPPED + 1.0, ProcessEnded(pid=FIRST + 2, start_ticks=FIRST + 2, exit_code=0))

    assert [one.rank for one in told(history).culprits] == [2]


def test_the_groups_tell_whether_one_that_is_gone_is_waited_for() -> None:
    """NCCL counts rank 1 behind in a group of ranks 0 and 1: a rank that was killed is not what keeps it."""
    history = ended(None, signal.SIGKILL, works=False, seconds=PAST_PATIENCE)
    members = tuple(
        GroupMember(rank=rank, pid=FIRST + rank, host="a", local=True, launched={"AllReduce": 41 - rank})
        for rank in (0, 1)
    )
    for at in range(3, int(PAST_PATIENCE), 3):
        history.add(STOPPED + at, Group(communicator="c", size=2, members=members))

    assert [one.rank for one in told(history, PAST_PATIENCE).culprits] == [1]


@pytest.mark.parametrize(("zombies", "blamed"), [(1, [1]), (2, [])])
def test_a_rank_that_was_a_zombie_at_first_sight_is_known_by_elimination(zombies: int, blamed: list[int]) -> None:
    """Nothing of it can be read any more, not even its number. Of two zombies, which could be other children, it may be neither."""
    history = job(1)
    history.add(0.0, process(FIRST, 1, "python train.py", 0, 2))
    stands(history, FIRST, BARRIER, FOR_EVER, STOPPED + 30.0)
    for pid in range(FIRST + 1, FIRST + 1 + zombies):
        history.add(STOPPED, Process(pid=pid, start_ticks=FIRST, parent_pid=1, name="python3", command=(), python=True))
        history.add(STOPPED, ProcessEnded(pid=pid, start_ticks=FIRST, zombie=True, signal=signal.SIGKILL))

    assert [one.rank for one in told(history).culprits] == blamed
