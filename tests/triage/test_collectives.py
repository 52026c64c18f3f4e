"""Counts and records of process groups: who is behind, who waits for whom, who means another call. Recorded on two H200."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfwatch.probes.flight_record import parse as parse_record
from perfwatch.probes.readings import (
    Communicator,
    GpuActivity,
    GroupMember,
    Operation,
    ProbeCall,
    Process,
    RecordedGroup,
    Thread,
)
from perfwatch.recording import load
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.triage.ranks.agreement import disagreement
from perfwatch.triage.ranks.collectives import growing, standings
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch.triage.verdict import Verdict
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


def verdict_of(ranks: int, seconds: float, laggard: int) -> Verdict:
    """So many ranks of which nobody may look at the stacks; RAS counts them."""
    counts = {rank: 40 if rank == laggard else 41 for rank in range(ranks)}
    members = tuple(
        GroupMember(rank=rank, pid=PIDS.get(rank, 700 + rank), host="a", local=True, launched={"AllReduce": count})
        for rank, count in counts.items()
    )
    looks = [
        [
            Communicator(communicator="c", size=ranks, members=members),
            *map(asleep, range(ranks), [3.0 * number] * ranks),
        ]
        for number in range(int(seconds / 3.0 + 1))
    ]
    return judge(case(*looks, world=ranks))


def asleep(rank: int, seconds: float) -> Thread:
    """What anybody may read of a thread: that it sleeps, and since when."""
    pid = PIDS.get(rank, 700 + rank)
    return Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=9.0, run_seconds=9.0, voluntary_switches=7,
                  ran_ago_seconds=seconds)  # fmt: skip


def test_ranks_that_nobody_may_look_at_are_still_counted() -> None:
    """Eight ranks, ptrace denied for all: the one that is behind is named when it has been for as long as patience lasts."""
    early, late = verdict_of(8, 30.0, laggard=5), verdict_of(8, 70.0, laggard=5)

    assert early.state == "inconclusive"
    assert early.suspect is not None
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert [culprit.rank for culprit in late.culprits] == [5]
    assert "ranks 0, 1, 2, 3, 4, 6, 7 wait for it" in late.summary


def test_a_rank_on_another_host_is_named_with_its_host() -> None:
    """Of four ranks two are here."""
    members = tuple(
        GroupMember(rank=rank, pid=PIDS.get(rank, 9000 + rank), host="a" if rank < 2 else "b", local=rank < 2,
                    launched={"AllReduce": 40 if rank == 3 else 41})
        for rank in range(4)
    )  # fmt: skip
    looks = [
        [Communicator(communicator="c", size=4, members=members), asleep(0, 3.0 * number), asleep(1, 3.0 * number)]
        for number in range(25)
    ]
    verdict = judge(case(*looks, world=4, here=2))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert (verdict.culprits[0].rank, verdict.culprits[0].host) == (3, "b")
    assert (verdict.coverage.ranks_seen, verdict.coverage.world_size) == (2, 4)


def test_two_processes_that_call_themselves_the_same_rank_do_not_confuse_it() -> None:
    """An elastic restart leaves the old one for a moment: the younger counts."""
    old = Process(
        pid=500, start_ticks=0, parent_pid=1, name="python", command=("python",), python=True, rank=1, world_size=2
    )
    twice = case([old, *report("hung.json")], report("hung.json"))
    graph = wait_graph(twice)

    assert len(twice.job.ranks) == 2
    assert graph is not None
    assert [seat.pid for seat in graph.ends] == [608]


def test_a_card_in_another_kernel_is_not_called_a_wedge() -> None:
    """The recorders say that both ranks are in one call; on one card something else is resident, before it."""
    recorded = load(Path(__file__).parent / "recordings" / "wedged_collective" / "fires" / "wedged_collective-nccl")
    cards = sorted({one.reading.uuid for one in recorded.records if isinstance(one.reading, GpuActivity)})
    other = tuple(
        structs.replace(one, reading=structs.replace(one.reading, sm_active=0.18))
        if isinstance(one.reading, GpuActivity) and one.reading.uuid == cards[0]
        else one
        for one in recorded.records
    )
    whole, changed = diagnose(recorded, 60.0), diagnose(replace(recorded, records=other), 60.0)

    assert whole.cause == "wedged_collective"
    assert changed.cause != "wedged_collective"
    assert changed.state != "hung"


def test_a_service_that_greets_nobody_is_evidence_beside_a_stopped_rank() -> None:
    """Its thread is stopped with the process; of a rank that only waits it answers."""
    recording = load(Path(__file__).parent / "recordings" / "stopped" / "fires" / "stopped-nccl")
    history = History(recording.records, recording.end + 1.0)
    before = judge(Case(history, recording.session))
    reason = "NCCL's RAS service at localhost:28028 did not answer"
    history.add(
        recording.end,
        ProbeCall(probe="nccl_ras", entity="job", duration_seconds=3.0, outcome="unavailable", reason=reason),
    )
    after = judge(Case(history, recording.session))

    assert (after.state, after.cause) == (before.state, before.cause) == ("hung", "stopped")
    assert "nccl_ras" not in {one.witness for one in before.evidence}
    assert [one.observed for one in after.evidence if one.witness == "nccl_ras"] == [f"no greeting: {reason}"]


FIRES = Path(__file__).parent / "recordings" / "mismatched_collective" / "fires"


def test_of_four_ranks_the_one_whose_tensor_is_of_another_size_is_named_alone() -> None:
    """Three agree; of two nobody could say which is wrong."""
    recording = load(FIRES / "nccl-sizes-four")
    verdict = judge(Case(History(recording.records, recording.end), recording.session))

    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert "operation 46: rank 1: all_reduce 46 of Float 900" in verdict.summary


def test_ranks_that_wait_in_different_calls_are_not_said_to_wait_in_the_same_one() -> None:
    """Two of four have left already; RAS counts what the other two have called."""
    recording = load(FIRES / "nccl-four")
    verdict = judge(Case(History(recording.records, recording.end), recording.session))

    assert verdict.culprits[0].rank == 0
    assert "wait in different calls" in verdict.summary
    assert "rank 0: 42 all_reduce; rank 1: 1 all_gather, 40 all_reduce" in verdict.summary


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
