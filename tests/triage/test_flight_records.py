"""Dumps of torch's flight recorders: which calls of the ranks are compared, and until when a dump is about now."""

import signal
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History

# Read by the watch alone, to decide if the recorders are asked: no verdict shows it.
from perfwatch.triage.ranks.absentee import at_rest
from perfwatch.verdict import Verdict
from perfwatch_probes.flight_record import parse
from perfwatch_probes.readings import (
    Communicator,
    GpuActivity,
    GroupMember,
    Network,
    Operation,
    Process,
    ProcessEnded,
    Reading,
    RecordedGroup,
    Steps,
)
from tests.probes.flight_dumps import call, written
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import level
from tests.triage.group_looks import PIDS, accused, said
from tests.triage.rank_looks import BARRIER, FIRST, FOR_EVER, STOPPED, job, judged, looks, stands

FIRES = RECORDINGS / "mismatched_collective" / "fires"
STALLED = ("stalled_collective", [1])
NO_ACCUSATION: tuple[None, list[int | None]] = (None, [])
UNEQUAL = [  # what an all_gather of unequal sizes is: torch keeps no state of the pieces
    call(1, "_broadcast_oop", 2, over=False, size=10),
    call(2, "_broadcast_oop", 2, over=False, size=12),
    call(3, "ALLGATHER_coalesced", 2, size=0),
]


def look(
    *more: list[dict[str, Any]], enqueued: tuple[int, int] = (2, 2), pids: dict[int, int] = PIDS
) -> list[RecordedGroup]:
    """The dumps of both ranks: an all_reduce, and then what each has called."""
    return [
        group
        for rank, calls in enumerate(more)
        for group in parse(written([call(0, "all_reduce", 1), *calls], enqueued[rank], 2), pids[rank], rank, "pipe")
    ]


def test_the_pieces_of_a_collective_are_no_different_calls() -> None:
    """They bear one number, and all ranks have them; another call in place of the whole is a mismatch."""
    other = said(look(UNEQUAL, [call(1, "all_reduce", 2, over=False)]))

    assert accused(said(look(UNEQUAL, UNEQUAL))) == NO_ACCUSATION
    assert accused(other) == ("mismatched_collective", [0, 1])
    assert "different operations by operation 2: rank 0: ALLGATHER_coalesced 2" in other.summary


@pytest.mark.parametrize("end", ["ALLGATHER_coalesced", "coalesced"])
def test_a_piece_that_is_over_is_not_what_a_rank_waits_in(end: str) -> None:
    """It waits in what it called later, to which the other one has not come."""
    pieces = [*UNEQUAL[:2], call(3, end, 2, size=0)]
    waits = look([*pieces, call(4, "all_reduce", 3, over=False)], pieces, enqueued=(3, 2))
    verdict = said(waits, waits)

    assert accused(verdict) == STALLED
    assert "rank 1 never joined all_reduce 3 " in verdict.summary


def batch(over: bool) -> list[dict[str, Any]]:
    """A send and a receive, and their end, which bears the number of the collective before."""
    return [
        call(1, "send 0->1", 1, 1, over=False, p2p=True),
        call(2, "recv 0<-1", 1, 1, over=False, p2p=True),
        call(3, "coalesced", 1, 1, over=over, size=0),
    ]


@pytest.mark.parametrize(("over", "cause"), [(True, "wedged_collective"), (False, None)])
def test_ranks_whose_batch_of_sends_is_not_over_are_in_no_common_collective(over: bool, cause: str | None) -> None:
    """By their stacks both are in one barrier; the end of a batch bears the number of the collective before it."""
    history, until = job(2), STOPPED + 80.0
    for pid in (FIRST, FIRST + 1):
        stands(history, pid, BARRIER, FOR_EVER, until)
    for at in looks(STOPPED, until):
        history.add(at, Network(interface="eth0", kind="netdev", received_bytes=10, sent_bytes=10))
    for dump in look(batch(over), batch(over), pids={0: FIRST, 1: FIRST + 1}):
        history.add(until - 1.0, dump)

    verdict = judged(history, until)

    assert verdict.cause == cause
    assert "mismatched_collective" not in {one.cause for one in verdict.findings}


FIVE_REDUCED = [call(order, "all_reduce", order + 1) for order in range(5)]
ENDED = 700.0


def sends(rank: int, count: int, over: bool = True) -> list[dict[str, Any]]:
    """A stage of a pipeline after five all_reduces; the one in the middle sends and receives."""
    to = (rank + 1) % 3
    return [call(10 + n, f"send {rank}->{to}", 5, n + 1, over=over or n < count - 1, p2p=True) for n in range(count)]


def dump(rank: int, more: list[dict[str, Any]], status: int, pid: int, origin: str = "pipe") -> list[RecordedGroup]:
    """What one of three ranks has written; its status counts sends and collectives alike."""
    return parse(written([*FIVE_REDUCED, *more], status, status - 1, "[0, 1, 2]"), pid, rank, origin, 3.0)


def test_a_stage_that_has_sent_less_is_not_behind() -> None:
    """When NCCL's watchdog has ended a pipeline, no rank is named for its number of sends."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=("torchrun",), python=True))
    for rank, count in enumerate((40, 80, 40)):
        history.add(0.0, Process(pid=20 + rank, start_ticks=9, parent_pid=10, name="python", python=True, rank=rank,
                                 command=("python", "train.py"), torch_loaded=True, world_size=3))  # fmt: skip
        history.add(ENDED, ProcessEnded(pid=20 + rank, start_ticks=9, signal=signal.SIGABRT))
        for one in dump(rank, sends(rank, count, over=False), count, 20 + rank, "file"):
            history.add(ENDED + 0.5, one)
    history.add(ENDED + 1.0, ProcessEnded(pid=10, start_ticks=1, exit_code=1))
    history.at = ENDED + 1.0
    verdict = judge(Case(history, session(root_pids=(10,))))

    assert verdict.cause == "killed"
    assert "had not come" not in verdict.summary


def test_sends_are_not_counted_as_collectives() -> None:
    """Rank 1 has sent 80 times, and has not come to the sixth collective."""
    last = call(200, "all_reduce", 6, 40, over=False)
    asked = [
        *dump(0, [*sends(0, 40), last], 6, PIDS[0]),
        *dump(1, sends(1, 80), 80, PIDS[1]),
        *dump(2, [*sends(2, 40), last], 6, 702),
    ]
    verdict = said(asked, asked, world=3)

    assert accused(verdict) == STALLED
    assert "rank 1 never joined all_reduce 6 " in verdict.summary
    assert "ranks 0, 2 wait for it" in verdict.summary


def test_a_pipeline_that_sends_accuses_no_rank() -> None:
    """Its status grows with each send, whatever its collectives count."""
    asked = [[one for rank in (0, 1, 2) for one in dump(rank, sends(rank, count), count, PIDS.get(rank, 702))]
             for count in (40, 44)]  # fmt: skip

    assert accused(said(*asked, world=3)) == NO_ACCUSATION


@pytest.mark.parametrize(("sent", "accusation"), [((80, 80), STALLED), ((80, 84), NO_ACCUSATION)])
def test_a_rank_that_goes_on_sending_does_not_stand(
    sent: tuple[int, int], accusation: tuple[str | None, list[int | None]]
) -> None:
    """Rank 1 has not come to the collective of the others, and has sent so much at each look."""
    last = call(200, "all_reduce", 6, 40, over=False)
    waiting = [*dump(0, [*sends(0, 40), last], 6, PIDS[0]), *dump(2, [*sends(2, 40), last], 6, 702)]
    asked = [[*waiting, *dump(1, sends(1, count), count, PIDS[1])] for count in sent]

    assert accused(said(*asked, world=3)) == accusation


def test_a_rank_in_a_send_of_that_number_has_not_come_to_a_collective() -> None:
    """Rank 1 has called the sixth all_reduce behind its sixth send, to rank 2: these two wait for each other."""
    last = call(200, "all_reduce", 6, 40, over=False)
    asked = [
        *dump(0, [last], 6, PIDS[0]),
        *dump(1, [*sends(1, 6, over=False), last], 6, PIDS[1]),
        *dump(2, [last], 6, 702),
    ]
    verdict = said(asked, asked, world=3)

    assert accused(verdict) == ("mismatched_collective", [1, 2])
    assert "rank 1 is in send 1->2" in verdict.summary
    assert "rank 2 is in all_reduce 6 " in verdict.summary


def lying(written_ago_seconds: float, sizes: tuple[int, int] = (8, 8)) -> list[RecordedGroup]:
    """Dumps that lay there: rank 0 is in a call that rank 1 has not made, or has made with another size."""
    found = []
    for rank, size in enumerate(sizes):
        reached = 10 if sizes[0] != sizes[1] or not rank else 9
        calls = tuple(
            Operation(sequence=number, order=number, name="all_reduce", input_elements=size if number == 10 else 8,
                      state="scheduled" if number == 10 else "completed")
            for number in range(9, reached + 1)
        )  # fmt: skip
        found.append(RecordedGroup(pid=PIDS[rank], rank=rank, group="0", members=(0, 1), enqueued=reached, completed=9,
                                   operations=calls, origin="file", written_ago_seconds=written_ago_seconds))  # fmt: skip
    return found


def group(count: int, other: int, state: str = "running") -> Communicator:
    """What RAS counts in both ranks."""
    counts = [{"AllReduce": count}, {"AllReduce": other} if state == "running" else {}]
    members = tuple(
        GroupMember(rank=rank, pid=PIDS[rank], host="a", local=True, state=state if rank else "running", launched=one)
        for rank, one in enumerate(counts)
    )
    return Communicator(communicator="c", size=2, members=members, missing=int(state != "running"))


def counted(*counts: int, dumps: list[RecordedGroup]) -> Verdict:
    """The verdict on what RAS counts in both ranks every 3 s, and on dumps that were found at the last look but one."""
    asked: list[list[Reading]] = [[group(count, count)] for count in counts]
    asked[-2] += dumps
    return said(*asked)


@pytest.mark.parametrize(
    ("counts", "written_ago_seconds", "accusation"),
    [
        ((100, 105, 110, 110), 2.0, STALLED),  # written at 4 s: the counts grew before
        ((100, 105, 110, 110), 600.0, NO_ACCUSATION),
        ((100, 105, 110, 115), 600.0, NO_ACCUSATION),
    ],
)
def test_a_dump_is_not_about_a_job_whose_counts_have_grown_since(
    counts: tuple[int, ...], written_ago_seconds: float, accusation: tuple[str | None, list[int | None]]
) -> None:
    """It was asked for earlier: the job does not hang."""
    assert accused(counted(*counts, dumps=lying(written_ago_seconds))) == accusation


def test_a_dump_is_not_about_a_job_that_made_a_step_since() -> None:
    """By the agent's count."""
    step = Steps(pid=PIDS[1], tid=PIDS[1], count=8, step_ago_seconds=30.0)

    assert accused(said(lying(60.0))) == STALLED
    assert accused(said([*lying(60.0), step])) == NO_ACCUSATION


def test_a_mismatch_in_a_dump_that_the_job_has_gone_past_is_no_hang() -> None:
    """The counts have grown since."""
    unequal = lying(600.0, (8, 12))

    assert accused(counted(100, 100, 100, dumps=unequal)) == ("mismatched_collective", [0, 1])
    assert accused(counted(100, 105, 110, dumps=unequal)) == NO_ACCUSATION


def test_a_rank_that_has_fallen_silent_has_not_gone_on() -> None:
    """RAS counts nothing of it any more."""
    before: list[Reading] = [group(100, 100), *lying(600.0)]

    assert accused(said(before, before, [group(100, 0, state="dead")])) == STALLED


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


def test_a_wedge_is_less_sure_where_the_recorders_were_not_read() -> None:
    """RAS counts the calls, which stand level; that all mean the same size only the recorders tell."""
    recorded = load_case(RECORDINGS / "wedged_collective" / "fires" / "wedged_collective-nccl")
    counts = tuple(one for one in recorded.records if not isinstance(one.reading, RecordedGroup))
    whole, counted = diagnose(recorded, 60.0), diagnose(replace(recorded, records=counts), 60.0)

    assert (whole.state, whole.cause) == (counted.state, counted.cause) == ("hung", "wedged_collective")
    assert (level(whole.confidence), level(counted.confidence)) == ("certain", "high")
    assert {"flight_recorder", "nccl_ras"} <= {one.witness for one in whole.evidence}


def test_of_four_ranks_the_one_whose_tensor_is_of_another_size_is_named_alone() -> None:
    """Three agree; of two it would not be known which is wrong."""
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


MOMENTS = 24


def rests(name: str, at: float) -> bool:
    """True if at this moment of a recorded case the ranks' recorders may be asked."""
    whole = load_case(RECORDINGS / name)
    return at_rest(Case(History(whole.records, at), whole.session, whole.events))


@pytest.mark.parametrize(
    "name",
    [
        "mismatched_collective/fires/mismatched_collective-nccl-order",
        "mismatched_collective/fires/mismatched_collective-nccl-sizes",
        "mismatched_collective/fires/nccl-sizes-four",
        "mismatched_collective/fires/one_call_more-nccl",
        "stalled_collective/fires/stalled_collective-nccl",
        "stuck_kernel/lookalike/both_ranks_receive-nccl",
    ],
)
def test_recorders_of_ranks_that_wait_for_each_other_are_asked(name: str) -> None:
    """Before the hang is reported: what they say comes in time."""
    at = expected_of(RECORDINGS / name).at

    assert rests(name, at)


@pytest.mark.parametrize(
    "name",
    [
        "mismatched_collective/lookalike/pipeline-nccl",
        "stalled_collective/lookalike/busy_rank_zero_evaluates-nccl",
        "stalled_collective/lookalike/straggling_rank_sleep-nccl",
        "wedged_collective/lookalike/busy_rank_zero_saves-nccl",
        "exposed_communication/fires/exposed_communication-nccl",
        "straggling_rank/fires/straggling_rank-nccl",
        "straggling_rank/fires/nccl-four",
    ],
)
def test_recorders_of_a_job_that_goes_on_are_asked_at_no_moment(name: str) -> None:
    """Not while it starts, makes steps, evaluates or saves, nor while one rank is late."""
    end = load_case(RECORDINGS / name).end

    assert [at for number in range(1, MOMENTS + 1) if rests(name, at := end * number / MOMENTS)] == []
