"""Ranks that wait for each other in calls of different groups; and what looks like it, and is told as nothing."""

from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Communicator, Network, Reading, Stack
from tests.recorded import RECORDINGS, load_case

FIRES = RECORDINGS / "mismatched_collective" / "fires"
OBJECTS, CLOCKS = FIRES / "one_rank_gathers_objects-nccl", FIRES / "call_of_another_group-nccl"
GROUP_OF_TWO_CALLS = 2
SECOND_BYTES = 50_000_000


def judged(folder: Path, change: Callable[[float, Reading], Reading | None] = lambda _, reading: reading) -> Verdict:
    """The recorded job, with readings changed or left out."""
    whole, at = load_case(folder), expected_of(folder).at
    history = History()
    for one in whole.records:
        if one.at <= at and (reading := change(one.at, one.reading)) is not None:
            history.add(one.at, reading)
    history.at = at
    return judge(Case(history, whole.session, whole.events))


def test_both_calls_and_both_lines_are_named() -> None:
    """One rank has left the epoch, the other reduces its gradients."""
    verdict = judged(OBJECTS)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert "all_gather_object at gather_metrics" in verdict.summary
    assert [one.rank for one in verdict.culprits] == [0, 1]


def test_a_rank_in_a_call_of_the_same_kind_may_be_in_the_very_call() -> None:
    """NCCL counts a call when it is launched; one that is held up before that is not another one."""

    def reduces(_: float, reading: Reading) -> Reading:
        if not isinstance(reading, Stack):
            return reading
        names = {"all_gather_object": "all_reduce", "all_gather": "all_reduce"}
        frames = (structs.replace(one, function=names.get(one.function, one.function)) for one in reading.frames)
        return structs.replace(reading, frames=tuple(frames))

    assert judged(OBJECTS, reduces).state == "inconclusive"


def test_large_objects_take_their_time() -> None:
    """What travels will arrive."""

    def travels(at: float, reading: Reading) -> Reading:
        if not isinstance(reading, Network):
            return reading
        return structs.replace(reading, received_bytes=int(at * SECOND_BYTES), sent_bytes=int(at * SECOND_BYTES))

    assert judged(OBJECTS, travels).state == "inconclusive"


def test_a_card_that_polls_is_in_the_other_group_that_all_have_called_equally_often() -> None:
    """Both ranks stand at one line; one of them has come to it a step later."""
    verdict = judged(CLOCKS)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert any(one.cause == "stuck_kernel" and "not refuted" in one.refuted_by for one in verdict.alternatives)


def test_without_another_group_it_may_be_a_kernel_of_its_own() -> None:
    """Counts of one group cannot say which."""

    def alone(_: float, reading: Reading) -> Reading | None:
        few = isinstance(reading, Communicator) and all(
            sum(one.launched.values()) <= GROUP_OF_TWO_CALLS for one in reading.members
        )
        return None if few else reading

    assert judged(CLOCKS, alone).state == "inconclusive"
