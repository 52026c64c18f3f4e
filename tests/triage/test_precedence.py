"""Which of several findings is the verdict: every rank is looked at, the sure come before the doubtful, and costs decide."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Cgroup, Frame, Process, ProcessUsage, SourceLine, Stack, Thread, Wait
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, Training, level_in

TRAIN, THREADS = "/app/train.py", "/usr/lib/python3.11/threading.py"
MODULE = Frame("<module>", TRAIN, 50)
NAP = (Frame("watch", TRAIN, 70), MODULE)
TURNS = ((Frame("spin", TRAIN, 80), MODULE), (Frame("spin", TRAIN, 81), MODULE))
TAKE = (Frame("take", TRAIN, 20), MODULE)
GIVE = (Frame("give", TRAIN, 44), Frame("run", THREADS, 1012), Frame("_bootstrap", THREADS, 1032))
SLEEP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
SECONDS, LOOK_SECONDS = 300, 0.5
STEPS = [FORWARD, BACKWARD, OPTIMIZER]
NOTED = "low"  # a finding beside the verdict


def two_ranks() -> History:
    """Of one torchrun, on one host."""
    history = History()
    for rank in (0, 1):
        history.add(0.0, Process(pid=200 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    return history


def naps(history: History, pid: int) -> None:
    """At one line, again and again: of several ranks nothing is said of that."""
    for look in range(int(SECONDS / LOOK_SECONDS)):
        at = 100.0 + look * LOOK_SECONDS
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0 + look * 0.0002,
                               voluntary_switches=50 + look, ran_ago_seconds=0.2, wait=SLEEP))  # fmt: skip
        history.add(at, Stack(pid=pid, tid=pid, frames=NAP, samples=10, span_seconds=LOOK_SECONDS))


def turns(history: History, pid: int) -> None:
    """A loop without an end."""
    loops, asks = ("while",), ("check",)
    history.add(1.0, SourceLine(file=TRAIN, line=80, text="while not ready:", loops=loops, loop_calls=asks))
    history.add(
        1.0, SourceLine(file=TRAIN, line=81, text="    ready = check()", calls=asks, loops=loops, loop_calls=asks)
    )
    for look in range(int(SECONDS / LOOK_SECONDS)):
        at = 100.0 + look * LOOK_SECONDS
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=5.0 + look * LOOK_SECONDS,
                               run_seconds=5.0 + look * LOOK_SECONDS, voluntary_switches=50, read_calls=1, write_calls=1))  # fmt: skip
        history.add(at, Stack(pid=pid, tid=pid, frames=TURNS[look % 2], samples=10, span_seconds=LOOK_SECONDS))


def deadlocked(history: History, pid: int, stacks: bool = True, kernel: bool = True) -> None:
    """Two threads that wait for each other: their stacks could be read or not, and what the kernel remembers of them."""
    for at in range(100, 400):
        for tid, frames in ((pid, TAKE), (pid + 100, GIVE)):
            known = Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                           voluntary_switches=50, ran_ago_seconds=at - 90.0, wait=LOCK)  # fmt: skip
            history.add(at, known if kernel else Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0))
            if stacks:
                history.add(at, Stack(pid=pid, tid=tid, frames=frames, samples=20, span_seconds=1.0))


def judged(history: History) -> Verdict:
    """After minutes."""
    history.at = 399.5
    return judge(Case(history, session(root_pids=(200, 201))))


@pytest.mark.parametrize("turning", [0, 1])
def test_a_rank_that_turns_without_end_is_reported_whichever_number_it_has(turning: int) -> None:
    """The other one sleeps a little, again and again."""
    history = two_ranks()
    naps(history, 201 - turning)
    turns(history, 200 + turning)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert [culprit.rank for culprit in verdict.culprits] == [turning]


@pytest.mark.parametrize("other", [{"stacks": False}, {"kernel": False}], ids=["no stacks", "stacks alone"])
@pytest.mark.parametrize("unseen", [0, 1])
def test_a_deadlock_that_is_sure_is_reported_before_a_doubtful_one(unseen: int, other: dict[str, bool]) -> None:
    """Of the other rank the stacks could not be read, or the kernel remembered nothing."""
    history = two_ranks()
    deadlocked(history, 200 + unseen, **other)
    deadlocked(history, 201 - unseen)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert {culprit.rank for culprit in verdict.culprits} == {1 - unseen}
    assert verdict.confidence > 0.9


def test_of_two_sure_deadlocks_that_of_the_first_rank_is_reported() -> None:
    """One culprit is enough to act."""
    history = two_ranks()
    deadlocked(history, 200)
    deadlocked(history, 201)

    assert {culprit.rank for culprit in judged(history).culprits} == {0}


def throttled(periods_share: float, seconds_per_second: float, *, delayed: float) -> Verdict:
    """A job with a quota: in so many of its ten periods a second it is stopped, and its thread waits so long for a CPU."""
    job = Training(card=False)
    for _ in range(27):
        job.goes_on(1.5, STEPS, run_share=1.0 - delayed, delay_share=delayed)
        at = job.history.at
        job.add(
            Cgroup(path="/", version=2, quota_cpus=8.0, periods=round(10 * at), throttled_periods=round(10 * at * periods_share),
                   throttled_seconds=at * seconds_per_second),
        )  # fmt: skip
    return job.verdict()


@pytest.mark.parametrize(
    ("periods_share", "seconds_per_second", "delayed", "confidence"),
    [
        (0.9, 0.6, 0.6, "certain"),
        (0.3, 0.003, 0.003, NOTED),  # a millisecond in each of them
        (0.3, 1.6, 0.02, NOTED),  # summed over sixteen CPUs, and hardly ever the one of the training
    ],
)
def test_a_quota_is_blamed_for_the_time_that_it_takes_and_not_for_the_periods_that_it_touches(
    periods_share: float, seconds_per_second: float, delayed: float, confidence: str
) -> None:
    """Of 100 ms, one or sixty."""
    verdict = throttled(periods_share, seconds_per_second, delayed=delayed)

    assert level_in(verdict, "throttled_cpu") == confidence
    assert (verdict.cause == "throttled_cpu") is (confidence != NOTED)


@pytest.mark.parametrize(
    ("card", "load", "confidence"),
    [
        (False, None, NOTED),  # exported in .bashrc: there is no launch that could block
        (True, "tiny_kernels", "certain"),  # the card waits for its host
        (True, None, "medium"),  # the card is not read
    ],
)
def test_blocking_launches_are_blamed_where_a_card_waits(card: bool, load: str | None, confidence: str) -> None:
    """A variable alone is no fault."""
    job = Training(card=card)
    job.add(
        Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    )  # fmt: skip
    verdict = job.goes_on(30, STEPS, load=load).verdict()

    assert level_in(verdict, "debug_apis_on") == confidence
    assert (verdict.cause == "debug_apis_on") is (confidence != NOTED)


def test_a_tracer_alone_is_noted() -> None:
    """A debugger is attached to the process, which goes on as before."""
    job = Training(card=False).goes_on(30, STEPS)
    job.add(
        ProcessUsage(pid=PID, state="R", threads=1, cpu_seconds=30.0, major_faults=0, minor_faults=0, resident_bytes=1,
                     tracer_pid=9),
    )  # fmt: skip
    verdict = job.verdict()

    assert verdict.state == "healthy"
    assert level_in(verdict, "debug_apis_on") == NOTED
