"""Counts and records of process groups: who is behind, who waits for whom, who means another call. Recorded on two H200."""

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from perfwatch.triage.ranks.agreement import disagreement
from perfwatch.triage.ranks.collectives import growing, standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch_probes.flight_record import parse as parse_record
from perfwatch_probes.readings import (
    Communicator,
    GroupMember,
    Operation,
    RecordedGroup,
)
from tests.triage.group_looks import PIDS, RECORDED, case, records, report


def test_counts_that_stand_still_name_the_laggard() -> None:
    """Not the leader: rank 1 has called 19 times less often."""
    (one,) = standings(case(report("hung.json"), report("hung.json")))

    assert [seat.rank for seat in one.behind] == [1]
    assert [seat.rank for seat in one.ahead] == [0]
    assert one.operation == "all_reduce 3199"  # under the number that the recorders give the same call


def test_unequal_counts_that_grow_are_a_healthy_job() -> None:
    """RAS itself says MISMATCH of it."""
    healthy = case(report("healthy_1.json"), report("healthy_2.json"))

    assert standings(healthy) == []
    assert wait_graph(healthy) is None
    assert growing(healthy)


def test_one_look_says_nothing() -> None:
    """Two are compared, and not ones that are nearly the same moment."""
    assert standings(case(report("hung.json"))) == []
    assert standings(case(report("hung.json"), report("hung.json"), apart_seconds=1.0)) == []


def test_the_recorders_name_the_call_and_who_is_not_in_it() -> None:
    """Sequence number, size and type."""
    graph = wait_graph(case(records("hung"), records("hung")))

    assert graph is not None
    assert graph.edges == {0: (1,)}
    assert [seat.rank for seat in graph.ends] == [1]
    assert graph.calls[0].startswith("all_reduce 3199 of Float")


def test_groups_called_in_opposite_order_are_a_ring() -> None:
    """Nobody is at the end of it, and both lines are known."""
    graph = wait_graph(case(records("opposite_order"), records("opposite_order")))

    assert graph is not None
    assert graph.ends == ()
    assert set(graph.cycle) == {0, 1}
    assert {graph.frames[rank].function for rank in (0, 1)} == {"sum_loss", "sum_tokens"}


def test_the_counts_of_the_same_moment_show_the_ring_too() -> None:
    """In one communicator rank 0 is ahead, in the other rank 1."""
    graph = wait_graph(case(report("opposite_order.json"), report("opposite_order.json")))

    assert graph is not None
    assert graph.ends == ()
    assert set(graph.cycle) == {0, 1}


def test_a_rank_that_is_gone_is_at_the_end() -> None:
    """RAS does not reach it any more."""
    graph = wait_graph(case(report("one_dead.json"), report("one_dead.json")))

    assert graph is not None
    assert [(seat.rank, seat.state) for seat in graph.ends] == [(1, "unresponsive")]
    assert graph.edges == {0: (1,)}


def shared(*places: tuple[int, str, bool], counts: tuple[int, int] = (9, 8)) -> list[Communicator]:
    """A communicator of two processes, by pid, host and whether it is the job's; the second one is behind."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, host=host, local=local, launched={"Broadcast": count})
        for rank, ((pid, host, local), count) in enumerate(zip(places, counts, strict=True))
    )
    return [Communicator(communicator="c", size=len(places), members=members)]


@pytest.mark.parametrize(
    ("look", "here", "ranks"),
    [
        (shared((607, "a", True), (608, "a", True)), 2, [0, 1]),
        (shared((607, "a", True), (900, "a", False)), 2, [0, None]),  # an engine that rank 0 sends its weights to
        (shared((900, "b", False), (901, "b", False)), 2, [None, None]),  # the engine's own group
        (shared((607, "a", True), (900, "a", False)), 1, [0, 1]),  # a rank of which nobody could read whose it is
        (shared((607, "a", True), (700, "b", False)), 1, [0, 1]),
    ],
)
def test_a_group_as_large_as_the_job_is_the_jobs_where_no_other_process_is_in_it(
    look: list[Communicator], here: int, ranks: list[int | None]
) -> None:
    """Else its numbers are not those of the ranks."""
    (one,) = standings(case(look, look, here=here))

    assert [seat.rank for seat in one.seats] == ranks


def group(rank: int, name: str, members: Sequence[int], calls: Sequence[tuple[int, int, str]]) -> RecordedGroup:
    """A group in the recorder of a rank; calls are (sequence, order, state)."""
    operations = tuple(Operation(sequence=s, order=o, name="all_reduce", state=state) for s, o, state in calls)
    done = [one.sequence for one in operations if one.state == "completed"]
    return RecordedGroup(
        pid=PIDS.get(rank, 700 + rank), rank=rank, group=name, members=tuple(members), operations=operations,
        enqueued=max((one.sequence for one in operations), default=0), completed=max(done, default=0),
    )  # fmt: skip


def test_the_wait_is_followed_through_the_groups_to_its_end() -> None:
    """Most are victims: 0 waits for 2 and 1 for 3 in their halves, 2 for 3 in its pair; 3 is in none."""
    done = (1, 1, "completed")
    look = [
        group(0, "even", (0, 2), [done, (2, 3, "scheduled")]),
        group(1, "odd", (1, 3), [done, (2, 3, "scheduled")]),
        group(2, "even", (0, 2), [done]),
        group(2, "pair", (2, 3), [(1, 2, "completed"), (2, 4, "scheduled")]),
        group(3, "odd", (1, 3), [done]),
        group(3, "pair", (2, 3), [(1, 2, "completed")]),
    ]
    graph = wait_graph(case(look, look, world=4))

    assert graph is not None
    assert graph.edges == {0: (2,), 1: (3,), 2: (3,)}
    assert [seat.rank for seat in graph.ends] == [3]


def test_pipeline_stages_differ_by_design() -> None:
    """Sends and receives are no calls in which all must meet."""
    look = [
        structs.replace(one, operations=tuple(structs.replace(o, point_to_point=True) for o in one.operations))
        for one in (group(0, "0", (0, 1), [(5, 9, "scheduled")]), group(1, "0", (0, 1), [(2, 4, "scheduled")]))
    ]
    graph = wait_graph(case(look, look))

    assert graph is None or graph.edges == {}
    assert disagreement(case(look, look)) is None


def test_a_rank_whose_recorder_cannot_be_read_is_not_accused() -> None:
    """Nobody knows whether it has come."""
    (zero,) = [one for one in records("hung") if one.rank == 0]

    assert wait_graph(case([zero], [zero])) is None


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("profiling_name", "nccl:all_gather", "operation"),
        ("input_sizes", [[12]], "size"),
        ("input_dtypes", ["Half"], "dtype"),
    ],
)
def test_a_call_that_means_another_thing_in_one_rank_is_found(field: str, value: Any, what: str) -> None:
    """One entry of rank 1 differs."""
    dumps = [pickle.loads((RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle").read_bytes()) for rank in (0, 1)]
    dumps[1]["entries"][-1][field] = value
    look = [
        one for rank, dump in enumerate(dumps) for one in parse_record(json.dumps(dump).encode(), PIDS[rank], rank, "")
    ]
    found = disagreement(case(look))

    assert found is not None
    assert (found.what, found.sequence, found.over) == (what, 3198, True)


def test_ranks_that_agree_are_not_accused() -> None:
    """Neither the hung pair nor the ring mixes anything up."""
    assert disagreement(case(records("hung"))) is None
    assert disagreement(case(records("opposite_order"))) is None


def halves(rank: int, reached: int, size: int) -> RecordedGroup:
    """A rank of the first or the second half of four, whose groups bear one name."""
    calls = tuple(
        Operation(sequence=number, order=number, name="all_reduce", input_elements=size, dtypes="Float",
                  state="completed" if number < reached else "scheduled")
        for number in range(reached - 3, reached + 1)
    )  # fmt: skip
    return RecordedGroup(pid=PIDS.get(rank, 700 + rank), rank=rank, group="1", members=(0, 1) if rank < 2 else (2, 3),
                         enqueued=reached, completed=reached - 1, operations=calls)  # fmt: skip


def test_groups_of_one_split_are_told_apart_by_their_ranks() -> None:
    """torch gave them one name; what one calls, and how often, is nothing to the other."""
    look = [halves(0, 10, 8), halves(1, 10, 8), halves(2, 12, 16), halves(3, 12, 16)]
    asked = case(look, look, world=4)

    assert disagreement(asked) is None
    assert len(standings(asked)) == 2
    assert not any(one.behind for one in standings(asked))
