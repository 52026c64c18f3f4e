"""Sends and receives in the recorders: who waits for whom, and when that says nothing. RAS counts none of them."""

from dataclasses import replace

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.ranks.collectives import never_called, standings
from perfwatch.triage.ranks.point_to_point import exchanging
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.readings import Communicator, GroupMember, Operation, RecordedGroup, Steps
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.group_looks import PIDS, case

SENDS_FIRST = RECORDINGS / "mismatched_collective" / "fires" / "both_send_first-nccl"


def record(rank: int, *calls: str, world: int = 2, numbers: tuple[int, ...] = ()) -> RecordedGroup:
    """A rank's calls in the group of all, none of them over unless it ends with a dot."""
    operations = tuple(
        Operation(
            sequence=(numbers or range(7, 99))[index],
            order=index,
            name=call.rstrip("."),
            point_to_point=call.startswith(("send", "recv")),
            state="completed" if call.endswith(".") else "scheduled",
        )
        for index, call in enumerate(calls)
    )
    own = [one.sequence for one in operations if not one.point_to_point]
    return RecordedGroup(
        pid=PIDS.get(rank, 700 + rank), rank=rank, group="0", members=tuple(range(world)), operations=operations,
        enqueued=max(own, default=0), completed=0,
    )  # fmt: skip


def ring(*look: RecordedGroup) -> set[int]:
    """The ranks that wait for each other, of recorders that said the same twice."""
    graph = wait_graph(case(look, look, world=len(look)))
    return set(graph.cycle) if graph is not None else set()


def test_two_ranks_that_both_send_first_wait_for_each_other() -> None:
    """Their receives come after the sends."""
    both = record(0, "send 0->1", "recv 0<-1"), record(1, "send 1->0", "recv 1<-0")

    assert ring(*both) == {0, 1}
    assert exchanging(case(both, both))


def test_a_send_whose_peer_receives_is_under_way() -> None:
    """A pipeline that stands for another reason is not accused of its order."""
    assert ring(record(0, "send 0->1"), record(1, "recv 1<-0", "send 1->0")) == set()


def test_a_send_to_a_rank_that_is_in_a_collective_closes_the_ring() -> None:
    """That one waits for the sender to come to the collective."""
    zero = record(0, "send 0->1", "all_reduce", numbers=(7, 3))
    one = record(1, "all_reduce", "recv 1<-0", numbers=(3, 7))

    assert ring(zero, one) == {0, 1}


def test_a_ring_of_three_that_send_first_is_found() -> None:
    """Each to the next."""
    look = [record(rank, f"send {rank}->{(rank + 1) % 3}", world=3) for rank in range(3)]

    assert ring(*look) == {0, 1, 2}


def test_a_rank_that_is_in_no_call_is_no_matter_of_order() -> None:
    """It is absent, which its own chain tells."""
    assert ring(record(0, "send 0->1"), record(1, "send 1->0.")) == set()


def test_two_that_both_receive_first_wait_for_each_other() -> None:
    """Under one number both have called a receive."""
    assert ring(record(0, "recv 0<-1", "send 0->1"), record(1, "recv 1<-0", "send 1->0")) == {0, 1}


def test_a_receive_whose_message_was_sent_may_only_wait_its_turn() -> None:
    """Small messages are sent before anybody receives them; the card may be busy with something else."""
    zero = record(0, "send 0->1.", "recv 0<-1")
    one = record(1, "recv 1<-0", "send 1->0")

    assert ring(zero, one) == set()


def test_of_batches_nothing_is_said() -> None:
    """A recorder never says of a call in a batch that it is over."""
    look = record(0, "send 0->1", "recv 0<-1", "coalesced"), record(1, "send 1->0", "recv 1<-0", "coalesced")

    assert ring(*look) == set()


def test_a_batch_that_is_over_keeps_nobody() -> None:
    """Whatever its calls seem to be."""
    look = record(0, "send 0->1", "coalesced.", "all_reduce"), record(1, "recv 1<-0", "coalesced.", "all_reduce")

    assert not exchanging(case(look, look))


def level(calls: int) -> Communicator:
    """A communicator in which both ranks have called equally often."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, local=True, launched={"AllReduce": calls}) for rank, pid in PIDS.items()
    )
    return Communicator(communicator="a", size=2, members=members)


def test_a_communicator_that_has_counted_nothing_is_no_witness() -> None:
    """Its ranks only send to each other, which RAS does not count."""
    unused, used = case([level(0)], [level(0)]), case([level(4)], [level(4)])

    assert never_called(unused)
    assert standings(unused) == []
    assert not never_called(used)
    assert len(standings(used)) == 1


def test_a_count_that_stood_while_steps_were_made_is_no_witness() -> None:
    """The steps do without that group: its silence was no halt then, and is none now."""
    asked = case([level(4)], [level(4)])
    for number, at in enumerate((0.5, 1.5, 2.5)):
        asked.history.add(at, Steps(pid=PIDS[0], tid=PIDS[0], count=10 + 5 * number, step_ago_seconds=0.1))

    assert standings(Case(asked.history, session())) == []


@pytest.mark.parametrize("at", [27.0, 30.0, 37.9])
def test_without_the_recorders_ranks_that_send_are_not_said_to_be_in_one_collective(at: float) -> None:
    """RAS counts nothing of what they do; recorded on two H200."""
    whole = load_case(SENDS_FIRST)
    records = tuple(one for one in whole.records if not isinstance(one.reading, RecordedGroup))
    verdict = diagnose(replace(whole, records=records), at)

    assert verdict.cause != "wedged_collective"
    assert diagnose(whole, at).cause in ("mismatched_collective", None)
