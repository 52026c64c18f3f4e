"""Ranks that NCCL's watchdog has ended: who was behind, by the dumps that they wrote before."""

import signal

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Operation, Process, ProcessEnded, RecordedGroup
from tests.sessions import session

ENDED = 700.0
PIDS = (20, 21, 22)


def dump(rank: int, reached: int, group: str = "0", written_ago_seconds: float = 3.0) -> RecordedGroup:
    """What lies there of a rank: the last call that it made in a group of all three."""
    calls = tuple(
        Operation(sequence=number, order=number, name="all_reduce", state="completed" if number < 10 else "scheduled")
        for number in range(8, reached + 1)
    )
    return RecordedGroup(pid=PIDS[rank], rank=rank, group=group, members=(0, 1, 2), enqueued=reached, completed=9,
                         operations=calls, origin="file", written_ago_seconds=written_ago_seconds)  # fmt: skip


def told(*dumps: RecordedGroup, number: int = signal.SIGABRT) -> Verdict:
    """Three ranks of torchrun, which ended by a signal; the dumps were read half a second later."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=("torchrun",), python=True))
    for rank, pid in enumerate(PIDS):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=10, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=3))  # fmt: skip
        history.add(ENDED, ProcessEnded(pid=pid, start_ticks=9, signal=number if rank != 1 else signal.SIGTERM))
    for one in dumps:
        history.add(ENDED + 0.5, one)
    history.add(ENDED + 1.0, ProcessEnded(pid=10, start_ticks=1, exit_code=1))
    history.at = ENDED + 1.0
    return judge(Case(history, session(root_pids=(10,))))


def test_the_rank_that_was_behind_is_named_when_the_watchdog_has_ended_all() -> None:
    """With the call in which the others waited for it."""
    verdict = told(dump(0, 10), dump(1, 9), dump(2, 10))

    assert verdict.cause == "killed"
    assert verdict.summary.endswith("; rank 1 had not come to all_reduce 10, in which rank 0, rank 2 waited")
    assert [one.observed for one in verdict.evidence if one.witness == "flight_recorder"] == [
        "rank 0 at 10, rank 1 at 9, rank 2 at 10"
    ]


@pytest.mark.parametrize(
    ("dumps", "number"),
    [
        ((dump(0, 10), dump(1, 9)), signal.SIGABRT),  # of rank 2 there is none
        ((dump(0, 10), dump(1, 10), dump(2, 10)), signal.SIGABRT),  # all are in one call
        ((dump(0, 10), dump(1, 9), dump(2, 10)), signal.SIGKILL),  # nobody wrote them for that
        ((dump(0, 10), dump(1, 9, written_ago_seconds=300.0), dump(2, 10)), signal.SIGABRT),  # of an earlier moment
        (
            (dump(0, 10), dump(1, 9), dump(2, 10), dump(0, 9, "1"), dump(1, 10, "1"), dump(2, 10, "1")),
            signal.SIGABRT,
        ),  # who waits for whom is not clear
    ],
    ids=["lacking", "level", "killed", "old", "crossed"],
)
def test_nobody_is_named_where_the_dumps_do_not_tell_it_clearly(dumps: tuple[RecordedGroup, ...], number: int) -> None:
    """The end is told as without them."""
    verdict = told(*dumps, number=number)

    assert verdict.cause == "killed"
    assert "had not come" not in verdict.summary
    assert not any(one.witness == "flight_recorder" for one in verdict.evidence)


def test_in_groups_of_their_own_ranks_are_compared_as_in_one() -> None:
    """A group in which all are level says nothing against the one in which one is behind."""
    level = [dump(rank, 10, "1") for rank in range(3)]

    assert "rank 1 had not come to all_reduce 10" in told(dump(0, 10), dump(1, 9), dump(2, 10), *level).summary
