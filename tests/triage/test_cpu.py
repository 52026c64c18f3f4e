"""Whose threads count where ranks share the CPUs of a machine, and where each has CPUs of its own; what a crowd may be called."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Affinity, Process, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER

NODE = tuple(range(8))


def ranks(*cpus: tuple[int, ...], beside: tuple[int, float, float] | None = None) -> Verdict:
    """Ranks that may run there, each with a training thread, a worker's and twelve more, which run or wait for a CPU all the time.

    ``beside``: a thread of another process, how much it runs and how much it waits for a CPU.
    """
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
        for number in range(41):
            at = number / 2
            for one, tid in ((pid, pid), (worker, worker), *((pid, 100 * pid + other) for other in range(12))):
                history.add(at, wants(one, tid, 0.5 * at, 0.5 * at))
            frames = (FORWARD, BACKWARD, OPTIMIZER)[number % 3]
            history.add(at, Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.4))
            if beside is not None:
                history.add(at, wants(beside[0], 7777, beside[1] * at, beside[2] * at))
    return judge(Case(history, session(mode="attach", root_pids=(20, 21))))


def wants(pid: int, tid: int, ran: float, waited: float) -> Thread:
    """A thread that ran for so long, and was runnable for so long without running."""
    return Thread(
        pid=pid, tid=tid, name="python", state="R", cpu_seconds=ran, run_seconds=ran, run_delay_seconds=waited
    )


@pytest.mark.parametrize(
    ("cpus", "words", "each"),
    [
        ((NODE, NODE), "28 threads of the job want to run on 8 CPUs", 4),
        ((NODE[:4], NODE[4:]), "14 threads of the job want to run on 4 CPUs", 4),  # srun --cpu-bind
        ((NODE[:4], NODE[2:]), "28 threads of the job want to run on 4 CPUs", 2),
    ],
)
def test_only_threads_that_may_run_on_the_cpus_of_a_rank_crowd_it(
    cpus: tuple[tuple[int, ...], ...], words: str, each: int
) -> None:
    """A worker that was not asked runs where its rank does; the CPUs are to be shared among the ranks that may run on them."""
    verdict = ranks(*cpus)

    assert (verdict.state, verdict.cause) == ("slow", "oversubscribed_threads")
    assert words in verdict.summary
    assert verdict.next[0] == f"OMP_NUM_THREADS={each}"


@pytest.mark.parametrize(
    "beside",
    [
        (40, 0.004, 0.3),  # a worker's feeder thread: it asks for little, and waits for it beside threads that compute
        (90, 1.0, 0.0),  # a writer outside of the job, which is looked at as well
    ],
)
def test_who_asks_for_little_and_who_is_not_of_the_job_crowds_nobody(beside: tuple[int, float, float]) -> None:
    """Both want a CPU for more than a quarter of the time."""
    assert "28 threads of the job want to run on 8 CPUs" in ranks(NODE, NODE, beside=beside).summary


def test_a_crowd_of_workers_with_one_thread_each_is_told_with_doubt() -> None:
    """There may be too much to do for these CPUs, whoever does it: two workers in place of five would bring no more."""
    recording = load_case(RECORDINGS / "oversubscribed_threads" / "fires" / "five_workers_of_one_thread")

    verdict = diagnose(recording, 6.0)

    assert verdict.cause == "oversubscribed_threads"
    assert verdict.confidence < 0.8
