"""Whose threads count where ranks share the CPUs of a machine, and where each has CPUs of its own; what a crowd may be called."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.shares.cpu import demand, sharers
from perfwatch_probes.readings import Affinity, Process, Thread
from tests.recorded import RECORDINGS, load_case
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
    wanted = demand(case, 20)

    assert wanted is not None
    assert (wanted.threads, sharers(case, 20)) == (threads, sharing)


@pytest.mark.parametrize(
    ("pid", "run_share", "delay_share"),
    [
        (40, 0.004, 0.3),  # a worker's feeder thread: it asks for little, and waits for it beside threads that compute
        (90, 1.0, 0.0),  # a writer outside of the job, which is looked at as well
    ],
)
def test_who_asks_for_little_and_who_is_not_of_the_job_crowds_nobody(
    pid: int, run_share: float, delay_share: float
) -> None:
    """Both want a CPU for more than a quarter of the time."""
    case = ranks(NODE, NODE)
    for at in (10.0, 15.0, 20.0):
        ran, waited = run_share * at, delay_share * at
        case.history.add(
            at,
            Thread(
                pid=pid, tid=7777, name="python", state="S", cpu_seconds=ran, run_seconds=ran, run_delay_seconds=waited
            ),
        )

    wanted = demand(case, 20)

    assert wanted is not None
    assert wanted.threads == 8


def test_a_crowd_of_workers_with_one_thread_each_is_told_with_doubt() -> None:
    """There may be too much to do for these CPUs, whoever does it: two workers in place of five would bring no more."""
    recording = load_case(RECORDINGS / "oversubscribed_threads" / "fires" / "five_workers_of_one_thread")

    verdict = diagnose(recording, 6.0)

    assert verdict.cause == "oversubscribed_threads"
    assert verdict.confidence < 0.8
