"""A rule looks at every rank: one of which it can say nothing does not hide another that hangs."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.hang import nearest
from perfwatch.triage.history import History
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.verdict import Abstention, Finding, Verdict
from perfwatch_probes.readings import Frame, Process, SourceLine, Stack, Thread, Wait
from tests.sessions import session

TRAIN, THREADS = "/app/train.py", "/usr/lib/python3.11/threading.py"
MODULE = Frame("<module>", TRAIN, 50)
NAP = (Frame("watch", TRAIN, 70), MODULE)
TURNS = ((Frame("spin", TRAIN, 80), MODULE), (Frame("spin", TRAIN, 81), MODULE))
TAKE = (Frame("take", TRAIN, 20), MODULE)
GIVE = (Frame("give", TRAIN, 44), Frame("run", THREADS, 1012), Frame("_bootstrap", THREADS, 1032))
SLEEP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
SECONDS, LOOK_SECONDS = 300, 0.5


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


def deadlocked(history: History, pid: int, seen: bool) -> None:
    """Two threads that wait for each other, whose stacks could be read or not."""
    for at in range(100, 400):
        for tid, frames in ((pid, TAKE), (pid + 100, GIVE)):
            history.add(at, Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                                   voluntary_switches=50, ran_ago_seconds=at - 90.0, wait=LOCK))  # fmt: skip
            if seen:
                history.add(at, Stack(pid=pid, tid=tid, frames=frames, samples=20, span_seconds=1.0))


def judged(history: History) -> Verdict:
    """After minutes."""
    history.at = 399.5
    return judge(Case(history, session(root_pids=(200, 201))))


@pytest.mark.parametrize("turning", [0, 1])
def test_a_rank_that_turns_without_end_is_told_whichever_number_it_has(turning: int) -> None:
    """The other one sleeps a little, again and again."""
    history = two_ranks()
    naps(history, 201 - turning)
    turns(history, 200 + turning)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert [culprit.rank for culprit in verdict.culprits] == [turning]


@pytest.mark.parametrize("unseen", [0, 1])
def test_a_deadlock_is_told_beside_a_rank_whose_stack_could_not_be_read(unseen: int) -> None:
    """py-spy was refused there."""
    history = two_ranks()
    deadlocked(history, 200 + unseen, seen=False)
    deadlocked(history, 201 - unseen, seen=True)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert {culprit.rank for culprit in verdict.culprits} == {1 - unseen}


def test_a_deadlock_with_one_witness_gives_way_to_one_that_is_sure() -> None:
    """And where both are sure, the first is told; one that needs patience yet is told last."""

    def finding(confidence: float, decides_in_seconds: float = 0.0) -> Finding:
        return Finding(cause="deadlocked_locks", state="hung", summary="", confidence=confidence, owner="user_code",
                       decides_in_seconds=decides_in_seconds)  # fmt: skip

    doubtful, later, sure, too = finding(ONE_SOURCE), finding(0.98, 20.0), finding(0.97), finding(0.98)
    abstention = Abstention(cause="deadlocked_locks", missing=())

    assert nearest([abstention, later, doubtful, None, sure, too]) is sure
    assert nearest([abstention, later, doubtful]) is doubtful
    assert nearest([None, abstention]) is abstention
