"""What is said of a job when some of its ranks are elsewhere, unreadable, or known by their counts alone."""

from dataclasses import replace

from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.triage.ranks.waitgraph import wait_graph
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Communicator,
    GpuActivity,
    GroupMember,
    ProbeCall,
    Process,
    Thread,
)
from tests.recorded import RECORDINGS, load_case
from tests.triage.group_looks import PIDS, case, report


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
    recorded = load_case(RECORDINGS / "wedged_collective" / "fires" / "wedged_collective-nccl")
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
    recording = load_case(RECORDINGS / "stopped" / "fires" / "stopped-nccl")
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


FIRES = RECORDINGS / "mismatched_collective" / "fires"


def test_of_four_ranks_the_one_whose_tensor_is_of_another_size_is_named_alone() -> None:
    """Three agree; of two nobody could say which is wrong."""
    recording = load_case(FIRES / "nccl-sizes-four")
    verdict = judge(Case(History(recording.records, recording.end), recording.session))

    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert "operation 46: rank 1: all_reduce 46 of Float 900" in verdict.summary


def test_ranks_that_wait_in_different_calls_are_not_said_to_wait_in_the_same_one() -> None:
    """Two of four have left already; RAS counts what the other two have called."""
    recording = load_case(FIRES / "nccl-four")
    verdict = judge(Case(History(recording.records, recording.end), recording.session))

    assert verdict.culprits[0].rank == 0
    assert "wait in different calls" in verdict.summary
    assert "rank 0: 42 all_reduce; rank 1: 1 all_gather, 40 all_reduce" in verdict.summary
