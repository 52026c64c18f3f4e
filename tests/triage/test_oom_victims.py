"""Whom the kernel killed for memory is named, and who failed for that beside it."""

from functools import partial

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Cgroup, KernelMessage, Process, ProcessEnded, Reading
from tests.recorded import RECORDINGS
from tests.sessions import session
from tests.triage.retold import retold

CASE = RECORDINGS / "out_of_memory" / "fires" / "killed_loader_worker"
TRAINER, WORKER = 23302, 23312


judged = partial(retold, CASE)


def test_the_worker_that_was_killed_is_named_before_the_trainer_that_failed_for_it() -> None:
    """Its data set kept a cache that only grew."""
    verdict = judged()

    assert verdict.summary == (
        f"DataLoader worker {WORKER} of pid {TRAINER} was killed because memory ran out (last seen at __getitem__ (train.py:20), "
        f"largest resident size seen: 1.2 GiB); pid {TRAINER} failed because of that"
    )
    assert [(one.pid, one.worker_pid) for one in verdict.culprits] == [(TRAINER, WORKER)]
    assert [one.entity for one in verdict.evidence if one.witness == "traceback"] == [f"pid {TRAINER}"]


def test_without_the_kernels_log_torchs_words_name_the_worker() -> None:
    """The control group's counter says that somebody was killed; what the trainer raised says who."""

    def counted(reading: Reading) -> Reading:
        if isinstance(reading, KernelMessage):
            return Cgroup(path="/job", version=2, oom_kills=1)
        return Cgroup(path="/job", version=2, oom_kills=0) if isinstance(reading, Cgroup) else reading

    verdict = judged(counted)

    assert (verdict.state, verdict.cause) == ("gone", "out_of_memory")
    assert [one.worker_pid for one in verdict.culprits] == [WORKER]


def test_a_trainer_that_was_killed_itself_ran_out_of_memory() -> None:
    """Whatever became of its workers."""

    def itself(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, pid=TRAINER) if isinstance(reading, KernelMessage) else reading

    verdict = judged(itself)

    assert verdict.summary == f"pid {TRAINER} ran out of memory (largest resident size seen: 1.2 GiB)"
    assert [(one.pid, one.worker_pid) for one in verdict.culprits] == [(TRAINER, None)]


def test_a_kill_in_another_job_is_not_this_ones() -> None:
    """Nor is it sure then who killed the worker: the kernel's log is to be asked."""

    def elsewhere(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, pid=4_000) if isinstance(reading, KernelMessage) else reading

    verdict = judged(elsewhere)

    assert verdict.cause == "crashed"
    assert verdict.confidence < 0.8
    assert verdict.next[1] == f"dmesg | grep -i 'killed process {WORKER}'"


def test_of_several_ranks_the_one_that_was_killed_is_named_and_not_their_launcher() -> None:
    """torchrun ends with 1 for it."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="torchrun", command=("torchrun",), python=True))
    for rank in (0, 1):
        history.add(0.0, Process(pid=10 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
        history.add(20.0 + rank, ProcessEnded(pid=10 + rank, start_ticks=9))
    history.add(21.0, KernelMessage(kind="oom_kill", text="Killed process 11 (python)", logged_ago_seconds=0.1, pid=11))
    history.add(22.0, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    history.at = 22.0

    verdict = judge(Case(history, session(root_pids=(1,))))

    assert verdict.summary == "rank 1 (pid 11) was killed because memory ran out; pid 1 failed because of that"
    assert [(one.pid, one.rank) for one in verdict.culprits] == [(11, 1)]


def counted(*later: tuple[float, Reading]) -> Verdict:
    """A training in a control group in which somebody is killed for memory after an hour, and how it goes on."""
    history = History()
    for pid, parent in ((10, 1), (11, 10)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
    for at, kills in ((0.0, 0), (3598.0, 0), (3600.0, 1), (90_000.0, 1)):
        history.add(at, Cgroup(path="/user.slice", version=2, oom_kills=kills))
    for at, reading in later:
        history.add(at, reading)
    history.at = 90_002.0
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(("end", "cause"), [({"exit_code": 0}, "finished"), ({"signal": 9}, "killed")])
def test_a_kill_of_somebody_else_in_the_same_group_is_not_this_jobs(end: dict[str, int], cause: str) -> None:
    """A notebook in the same container, a day before the training ended."""
    verdict = counted((90_001.0, ProcessEnded(pid=10, start_ticks=9, **end)))  # type: ignore[arg-type]

    assert verdict.cause == cause


@pytest.mark.parametrize(("code", "cause"), [(1, "out_of_memory"), (0, "finished")])
def test_a_process_that_ended_when_the_group_counted_a_kill_may_be_the_victim(code: int, cause: str) -> None:
    """Unless the job has got over it: then it ended with 0."""
    verdict = counted(
        (3599.0, ProcessEnded(pid=11, start_ticks=9)), (90_001.0, ProcessEnded(pid=10, start_ticks=9, exit_code=code))
    )

    assert verdict.cause == cause


@pytest.mark.parametrize(("victim", "cause"), [(12, "out_of_memory"), (13, "finished")])
def test_of_a_script_that_ended_with_0_only_a_rank_that_was_killed_counts(victim: int, cause: str) -> None:
    """The kernel's log names it; what the rank had started, it got over."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=9, parent_pid=1, name="sh", command=("sh", "all.sh")))
    for pid, parent in ((12, 10), (13, 12)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
        history.add(20.0, ProcessEnded(pid=pid, start_ticks=9))
    text = f"Killed process {victim} (python)"
    history.add(20.0, KernelMessage(kind="oom_kill", text=text, logged_ago_seconds=0.1, pid=victim))
    history.add(21.0, ProcessEnded(pid=10, start_ticks=9, exit_code=0))
    history.at = 21.0

    assert judge(Case(history, session(root_pids=(10,)))).cause == cause
