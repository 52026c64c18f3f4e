"""Whose threads count where ranks share the CPUs of a machine, and where each has CPUs of its own."""

import pytest

from perfwatch.probes.readings import Affinity, Process, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.shares.cpu import Demand, demand, sharers
from tests.sessions import session

NODE = tuple(range(8))


def ranks(*cpus: tuple[int, ...]) -> Case:
    """Ranks that may run there, each with a training thread, a worker's and two more, all of which compute all the time."""
    history = History(at=20.0)
    for rank, allowed in enumerate(cpus):
        pid, worker = 20 + rank, 40 + rank
        for one, parent, name in ((pid, 1, "python"), (worker, pid, "pt_data_worker")):
            history.add(
                0.0,
                Process(pid=one, start_ticks=one, parent_pid=parent, name=name, command=("python", "train.py"), python=True,
                        torch_loaded=True, rank=rank, environment={"RANK": str(rank)}),
            )  # fmt: skip
        history.add(10.0, Affinity(pid=pid, cpus=allowed))
        for at in (10.0, 15.0, 20.0):
            for one, tid in ((pid, pid), (pid, 100 * pid), (pid, 100 * pid + 1), (worker, worker)):
                history.add(at, Thread(pid=one, tid=tid, name="python", state="R", cpu_seconds=at, run_seconds=at))
    return Case(history, session(root_pids=(20, 21)))


@pytest.mark.parametrize(
    ("cpus", "threads", "sharing"),
    [
        ((NODE, NODE), 8, 2),
        ((NODE[:4], NODE[4:]), 4, 1),  # srun --cpu-bind
        ((NODE[:4], NODE[2:]), 8, 2),
    ],
)
def test_only_threads_that_may_run_on_the_cpus_of_a_rank_crowd_it(
    cpus: tuple[tuple[int, ...], ...], threads: int, sharing: int
) -> None:
    """A worker that was not asked runs where its rank does."""
    case = ranks(*cpus)

    assert (demand(case, 20), sharers(case, 20)) == (Demand(threads), sharing)
