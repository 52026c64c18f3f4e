"""Ranks that a launcher starts again: when it is a loop of failures, and what of the ranks before still counts."""

import signal

import pytest
from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Process, ProcessEnded
from tests.sessions import session
from tests.triage.rank_looks import BARRIER, BEGAN, FOR_EVER, MODULE, STEP, STOPPED, TORCH, TRAIN, process, runs, stands

SHELL, TORCHRUN = "bash sweep.sh", "python /env/bin/torchrun train.py"
NOW, NEWEST = 4000.0, 40


def followed(above: str, life_seconds: float, *, code: int | None, pids: tuple[int, ...] = (20, 30, NEWEST)) -> History:
    """Processes of rank 0 below one parent: the last has just begun, and those before it ended so after such a life."""
    history = History(at=NOW)
    command = tuple(above.split())
    python = command[0] == "python"
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name=command[0], command=command, python=python))
    for number, pid in enumerate(pids):
        born = NOW - 1.0 - (len(pids) - 1 - number) * life_seconds
        history.add(
            born,
            Process(pid=pid, start_ticks=int(100 * born), parent_pid=10, name="python", command=("python", "train.py"),
                    python=True, torch_loaded=True, rank=0, age_seconds=0.0),
        )  # fmt: skip
        if pid != pids[-1]:
            end = ProcessEnded(pid=pid, start_ticks=int(100 * born), exit_code=code)
            history.add(born + life_seconds, end)
    return history


def judged(history: History, trains_seconds: float = 0.0) -> Verdict:
    """The verdict after the newest process has trained for so long."""
    if trains_seconds:
        runs(history, NEWEST, STEP, NOW, NOW + trains_seconds)
    history.at = NOW + trains_seconds
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(
    ("above", "life_seconds", "code", "restarted"),
    [
        (TORCHRUN, 20.0, None, True),  # how they ended only torchrun knows, and it starts anew what failed
        (SHELL, 20.0, 1, True),  # until python train.py; do sleep 5; done
        (SHELL, 20.0, 0, False),  # for seed in 1 2 3; do RANK=0 python train.py $seed; done
        (SHELL, 20.0, None, False),
        (TORCHRUN, 1200.0, 1, False),  # a run that fails now and then goes on
    ],
)
def test_only_what_follows_on_short_failures_is_a_restart(
    above: str, life_seconds: float, code: int | None, restarted: bool
) -> None:
    """A process that ended well is not restarted, whatever comes next."""
    verdict = judged(followed(above, life_seconds, code=code))

    assert ((verdict.state, verdict.cause) == ("slow", "restart_loop")) is restarted
    assert ("3 processes of rank 0 in 41 s" in verdict.summary) is restarted


@pytest.mark.parametrize(
    ("pids", "life_seconds", "trains_seconds", "state"),
    [
        ((30, NEWEST), 20.0, 15.0, "inconclusive"),  # it may end as the last one did
        ((30, NEWEST), 20.0, 60.0, "healthy"),
        ((30, NEWEST), 100.0, 15.0, "healthy"),  # a verdict does not wait for minutes
        ((20, 30, NEWEST), 20.0, 15.0, "slow"),  # two restarts are a loop
        ((20, 30, NEWEST), 20.0, 60.0, "healthy"),  # the third try outlives those before it
    ],
)
def test_a_restarted_process_is_healthy_once_it_has_outlived_those_before_it(
    pids: tuple[int, ...], life_seconds: float, trains_seconds: float, state: str
) -> None:
    """Whatever it does meanwhile: it trains in each of these cases."""
    verdict = judged(followed(TORCHRUN, life_seconds, code=1, pids=pids), trains_seconds)

    assert verdict.state == state
    assert ("restart_loop" in {verdict.cause, *(one.cause for one in verdict.findings)}) is (trains_seconds < 60.0)


SCORES = tuple(
    (Frame("forward", TORCH + f"nn/modules/{name}.py", 7), Frame("evaluate", TRAIN, 77), MODULE)
    for name in ("linear", "dropout", "activation")
)
ENDED, UNTIL = 15.0, STOPPED + 30.0


def rank(pid: int, number: int, world_size: int, restarts: int) -> Process:
    """One that torchrun, pid 10, has started."""
    started = process(pid, 10, "python train.py", number, world_size)
    return structs.replace(started, environment={"TORCHELASTIC_RESTART_COUNT": str(restarts)})


def renumbered(restarts: int, world_size: int = 2) -> History:
    """This node's ranks 2 and 3 of 4 ended, and there are 0 and 1 of so many now, of which one waits and one evaluates."""
    history = History()
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for pid, number in ((100, 2), (101, 3)):
        history.add(0.0, rank(pid, number, 4, 0))
        history.add(ENDED, ProcessEnded(pid=pid, start_ticks=pid, signal=signal.SIGTERM))
    for pid, number in ((200, 0), (201, 1)):
        history.add(ENDED + 2.0, rank(pid, number, world_size, restarts))
        runs(history, pid, STEP, BEGAN, STOPPED)
    stands(history, 200, BARRIER, FOR_EVER, UNTIL)
    runs(history, 201, SCORES, STOPPED, UNTIL)
    history.at = UNTIL
    return history


def elastic(history: History) -> Verdict:
    """The verdict on torchrun's job."""
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(
    ("restarts", "world_size"), [(0, 2), (1, 2), (1, 4)], ids=["other node gone", "and a rank failed", "a rank failed"]
)
def test_ranks_of_a_generation_before_are_not_waited_for(restarts: int, world_size: int) -> None:
    """By the size of the job or by the launcher's count of restarts; however few ranks there are now, they are all of this node."""
    verdict = elastic(renumbered(restarts, world_size))

    assert verdict.state != "hung"
    assert (verdict.coverage.ranks_seen, verdict.coverage.world_size) == (2, world_size)
    assert ("ranks" in {one.witness for one in verdict.missing}) is (world_size > 2)


def test_ranks_that_ended_in_the_generation_of_the_others_are_waited_for() -> None:
    """Size and count are the same: these two were started late."""
    verdict = elastic(renumbered(0, 4))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert verdict.culprits[0].rank == 2
    assert verdict.coverage.ranks_seen == 4


def test_a_rank_that_ends_within_a_generation_is_one_of_it() -> None:
    """Its launcher has started no other since."""
    history = renumbered(0)
    history.add(STOPPED + 1.0, ProcessEnded(pid=201, start_ticks=201, signal=signal.SIGKILL))
    verdict = elastic(history)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(1, 201)]
