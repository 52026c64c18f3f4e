"""Ranks in collectives: which rank is missing, which call differs, and what recorders say of it."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.triage.questions import ranks_wait_for_each_other
from perfwatch.verdict import Verdict
from perfwatch_probes.flight_record import parse
from perfwatch_probes.readings import (
    Communicator,
    Frame,
    GpuActivity,
    GroupMember,
    Host,
    Network,
    Operation,
    ProbeCall,
    Process,
    ProcessEnded,
    Reading,
    RecordedGroup,
    SourceLine,
    Stack,
    Steps,
    Traffic,
    Wait,
)
from tests.probes.flight_dumps import call, written
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import level
from tests.triage.group_looks import PIDS, accused, said
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)
from tests.triage.retold import retold, same

# Ranks that are all in one call, whose recorders have not yet told what sizes they mean by it.


CASE = RECORDINGS / "wedged_collective" / "lookalike" / "sizes-that-the-recorders-have-not-told-yet"
REFUSED = ProbeCall(
    probe="flight_recorder", entity="rank 0", duration_seconds=4.0, outcome="unavailable", reason="it is silent"
)


def test_the_fabric_is_not_blamed_while_a_recorder_may_tell_that_sizes_differ() -> None:
    """One of the ranks means 900 elements; RAS counts calls alone, and those are level."""
    verdict = retold(CASE)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "wedged_collective"


def test_where_the_recorders_do_not_answer_it_is_blamed_less_surely() -> None:
    """Nothing more will be known."""
    verdict = retold(CASE, lambda reading: reading, REFUSED)

    assert (verdict.cause, verdict.confidence) == ("wedged_collective", 0.8)


def test_nor_is_it_waited_for_where_the_look_at_the_job_is_over() -> None:
    """What several hosts have sent holds no question under way."""
    recording = load_case(CASE)
    conditions = {**recording.session.conditions, "apart_seconds": 0.0}
    sent = replace(recording, session=msgspec.structs.replace(recording.session, conditions=conditions))

    assert diagnose(sent, expected_of(CASE).at).cause == "wedged_collective"


# Dumps of torch's flight recorders: which calls of the ranks are compared, and until when a dump is about now.


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
    assert "different operations for operation 2: rank 0 is in ALLGATHER_coalesced 2" in other.summary


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
    assert "operation 46: rank 1 is in all_reduce 46 of Float 900" in verdict.summary


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
    return ranks_wait_for_each_other(Case(History(whole.records, at), whole.session, whole.events))


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


# Ranks that NCCL's watchdog has ended: who was behind, by the dumps that they wrote before.


LAST_CALLS_PIDS = (20, 21, 22)


def dump_before_the_end(rank: int, reached: int, group: str = "0", written_ago_seconds: float = 3.0) -> RecordedGroup:
    """What lies there of a rank: the last call that it made in a group of all three."""
    calls = tuple(
        Operation(sequence=number, order=number, name="all_reduce", state="completed" if number < 10 else "scheduled")
        for number in range(8, reached + 1)
    )
    return RecordedGroup(pid=LAST_CALLS_PIDS[rank], rank=rank, group=group, members=(0, 1, 2), enqueued=reached, completed=9,
                         operations=calls, origin="file", written_ago_seconds=written_ago_seconds)  # fmt: skip


def told(*dumps: RecordedGroup, number: int = signal.SIGABRT) -> Verdict:
    """Three ranks of torchrun, which ended by a signal; the dumps were read half a second later."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=("torchrun",), python=True))
    for rank, pid in enumerate(LAST_CALLS_PIDS):
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
    verdict = told(dump_before_the_end(0, 10), dump_before_the_end(1, 9), dump_before_the_end(2, 10))

    assert verdict.cause == "killed"
    assert verdict.summary.endswith("; rank 1 had not come to all_reduce 10, in which rank 0, rank 2 waited")
    assert [one.observed for one in verdict.evidence if one.witness == "flight_recorder"] == [
        "rank 0 at 10, rank 1 at 9, rank 2 at 10"
    ]


@pytest.mark.parametrize(
    ("dumps", "number"),
    [
        ((dump_before_the_end(0, 10), dump_before_the_end(1, 9)), signal.SIGABRT),  # of rank 2 there is none
        (
            (dump_before_the_end(0, 10), dump_before_the_end(1, 10), dump_before_the_end(2, 10)),
            signal.SIGABRT,
        ),  # all are in one call
        (
            (dump_before_the_end(0, 10), dump_before_the_end(1, 9), dump_before_the_end(2, 10)),
            signal.SIGKILL,
        ),  # nobody wrote them for that
        (
            (
                dump_before_the_end(0, 10),
                dump_before_the_end(1, 9, written_ago_seconds=300.0),
                dump_before_the_end(2, 10),
            ),
            signal.SIGABRT,
        ),  # of an earlier moment
        (
            (
                dump_before_the_end(0, 10),
                dump_before_the_end(1, 9),
                dump_before_the_end(2, 10),
                dump_before_the_end(0, 9, "1"),
                dump_before_the_end(1, 10, "1"),
                dump_before_the_end(2, 10, "1"),
            ),
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
    level = [dump_before_the_end(rank, 10, "1") for rank in range(3)]

    assert (
        "rank 1 had not come to all_reduce 10"
        in told(dump_before_the_end(0, 10), dump_before_the_end(1, 9), dump_before_the_end(2, 10), *level).summary
    )


# Ranks that wait for each other in calls of different groups; and what looks like it, and is told as nothing.


OBJECTS, CLOCKS = FIRES / "one_rank_gathers_objects-nccl", FIRES / "call_of_another_group-nccl"
GROUP_OF_TWO_CALLS = 2
SECOND_BYTES = 50_000_000


def judged_in_groups(
    folder: Path, change: Callable[[float, Reading], Reading | None] = lambda _, reading: reading
) -> Verdict:
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
    verdict = judged_in_groups(OBJECTS)

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

    assert judged_in_groups(OBJECTS, reduces).state == "inconclusive"


def test_large_objects_take_their_time() -> None:
    """What travels will arrive."""

    def travels(at: float, reading: Reading) -> Reading:
        if not isinstance(reading, Network):
            return reading
        return structs.replace(reading, received_bytes=int(at * SECOND_BYTES), sent_bytes=int(at * SECOND_BYTES))

    assert judged_in_groups(OBJECTS, travels).state == "inconclusive"


def test_a_card_that_polls_is_in_the_other_group_that_all_have_called_equally_often() -> None:
    """Both ranks stand at one line; one of them has come to it a step later."""
    verdict = judged_in_groups(CLOCKS)

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert any(one.cause == "stuck_kernel" and "not ruled out" in one.refuted_by for one in verdict.alternatives)


def test_without_another_group_it_may_be_a_kernel_of_its_own() -> None:
    """Counts of one group cannot say which."""

    def alone(_: float, reading: Reading) -> Reading | None:
        few = isinstance(reading, Communicator) and all(
            sum(one.launched.values()) <= GROUP_OF_TWO_CALLS for one in reading.members
        )
        return None if few else reading

    assert judged_in_groups(CLOCKS, alone).state == "inconclusive"


# Where all ranks use several communicators, calls in another order hang as a network that delivers nothing does.


TWO_COMMUNICATORS_CASE = RECORDINGS / "wedged_collective" / "fires" / "wedged_collective-nccl-attached"
OWN = next(one.reading for one in load_case(TWO_COMMUNICATORS_CASE).records if isinstance(one.reading, Communicator))
SECOND = msgspec.structs.replace(OWN, communicator="2b")


def test_without_recorders_a_second_communicator_of_all_ranks_is_said_and_makes_it_less_sure() -> None:
    """NCCL counts the calls of each, not their order over both."""
    alone, beside = retold(TWO_COMMUNICATORS_CASE), retold(TWO_COMMUNICATORS_CASE, same, SECOND)

    assert (alone.cause, beside.cause) == ("wedged_collective", "wedged_collective")
    assert "a different order" not in alone.summary
    assert "2 communicators in a different order" in beside.summary
    assert beside.confidence <= alone.confidence
    assert "perfwatch run" in beside.next[1]


def test_a_communicator_that_nobody_used_yet_hangs_nobody() -> None:
    """Groups are often made at the start, and some of them are for later."""
    idle = [msgspec.structs.replace(one, launched=dict.fromkeys(one.launched, 0)) for one in OWN.members]

    verdict = retold(TWO_COMMUNICATORS_CASE, same, msgspec.structs.replace(SECOND, members=tuple(idle)))

    assert "another order" not in verdict.summary


# Unequal sizes are told by exclusion: only where all data of the collective is seen to go over connections.


RECORDING = RECORDINGS / "mismatched_collective" / "fires" / "sizes-sockets-four"
AT = 9.0
SILENT = ProbeCall(
    probe="flight_recorder", entity="job", outcome="unavailable", reason="it is silent", duration_seconds=4.0
)


def without_recorders() -> Recording:
    """The recorded job, whose recorders were asked in vain."""
    whole = load_case(RECORDING)
    asked = msgspec.structs.replace(next(one for one in whole.records if one.at > AT / 2), reading=SILENT)
    return replace(whole, records=tuple(sorted((*whole.records, asked), key=lambda one: one.at)))


def test_over_sockets_that_have_delivered_all_the_sizes_are_blamed() -> None:
    """Four ranks in one call, and nothing is under way between them."""
    assert diagnose(load_case(RECORDING), AT).cause == "mismatched_collective"


def test_where_there_is_an_rdma_port_the_network_is_not_ruled_out() -> None:
    """The collective may run over it, whatever the connections carried before."""
    whole = without_recorders()
    port = Network(interface="mlx5_0/1", kind="rdma", received_bytes=0, sent_bytes=0)
    looks = [msgspec.structs.replace(one, reading=port) for one in whole.records if isinstance(one.reading, Host)]
    seen = replace(whole, records=tuple(sorted((*whole.records, *looks), key=lambda one: one.at)))

    assert looks
    assert diagnose(seen, AT).cause == "wedged_collective"


def test_what_was_not_confirmed_at_any_look_has_not_arrived() -> None:
    """However little it is: a keep-alive is confirmed within milliseconds, and the kernel sends again ever more seldom."""
    whole, same = without_recorders(), {"queued_bytes": 192, "sent_bytes": 50_000_000, "received_bytes": 50_000_000}

    def stuck(one: Record) -> Record:
        if not isinstance(one.reading, Traffic):
            return one
        return msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, **same))

    assert diagnose(replace(whole, records=tuple(map(stuck, whole.records))), AT).cause == "wedged_collective"


# A rank that asks again and again for what only others can change, a flag in shared memory: does anybody work who may write it?


SOLVER = "/app/solver.py"
FLAG: Frames = (Frame("wait", TRAIN, 45), MODULE)
SOLVES: Frames = (Frame("relax", SOLVER, 15), Frame("<module>", SOLVER, 60))
SPINS = SourceLine(file=TRAIN, line=45, text="while self.buf[0] == 0:", loops=("while",), only_tests=True)
NAPS = SourceLine(file=TRAIN, line=45, text="time.sleep(0.01)", calls=("time.sleep",), loop_calls=("time.sleep",),
                  loops=("while",), only_tests=True)  # fmt: skip
COMPUTES = SourceLine(file=SOLVER, line=15, text="total += f(x)", calls=("f",), loop_calls=("f",), loops=("for",))
ASKS_TOO = SourceLine(file=SOLVER, line=15, text="while self.buf[1] == 0:", loops=("while",), only_tests=True)
ADVANCES = SourceLine(file=SOLVER, line=15, text="while sim.advance():", calls=("sim.advance",), loop_calls=("sim.advance",),
                      loops=("while",), only_tests=True)  # fmt: skip
CHILD = 400
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.01)
SOON, LATE = STOPPED + 40.0, STOPPED + 80.0


def asks(line: SourceLine, pid: int = FIRST, history: History | None = None) -> History:
    """A rank that stays in that loop since it trained last."""
    history = history or job(1)
    history.add(1.0, line)
    naps = line is NAPS
    runs(history, pid, [FLAG], STOPPED, LATE, share=0.004 if naps else 0.95, wait=NAP if naps else None)
    return history


def started(history: History, line: SourceLine | None, cores: float = 0.95, parent: int = FIRST) -> None:
    """A process that a rank has started: it runs at a line, or does nothing."""
    history.add(1.0, process(CHILD, parent, "python solver.py"))
    uses(history, CHILD, cores, 0.0, LATE)
    if line is None:
        stands(history, CHILD, SOLVES, FOR_EVER, LATE)
        return
    history.add(1.0, line)
    runs(history, CHILD, [SOLVES], STOPPED, LATE, share=cores)


@pytest.mark.parametrize("line", [SPINS, NAPS])
@pytest.mark.parametrize("work", [COMPUTES, ADVANCES])
def test_who_asks_for_what_a_child_that_works_may_write_waits_for_it_perhaps(
    line: SourceLine, work: SourceLine
) -> None:
    """However long; a call in a test may be a step of its work."""
    history = asks(line)
    started(history, work)

    for at in (SOON, LATE):
        verdict = judged(history, at)
        assert (verdict.state, verdict.cause, verdict.confidence) == ("busy", "waiting_on_work", 0.65)
        assert f"; process {CHILD} at relax (solver.py:15) may release it" in verdict.summary


@pytest.mark.parametrize("line", [SPINS, NAPS])
@pytest.mark.parametrize("does", ["nothing", "asks too", "is not there"])
def test_where_nobody_works_who_may_write_it_the_loop_has_no_end(line: SourceLine, does: str) -> None:
    """A child that only waits for an order of the one that waits for its answer burns CPU time, and brings nothing."""
    history = asks(line, FIRST, job(1, trained=line is SPINS))  # attached to when it napped already
    if does != "is not there":
        started(history, ASKS_TOO if does == "asks too" else None, cores=0.95 if does == "asks too" else 0.0)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "endless_python", 0.65)


def test_a_child_whose_main_thread_asks_may_work_in_another() -> None:
    """It waits for its own worker."""
    history = asks(SPINS)
    started(history, ASKS_TOO)
    runs(history, CHILD, [], STOPPED, LATE, tid=CHILD + 1, share=0.9)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


@pytest.mark.parametrize("works", [True, False])
def test_the_others_wait_in_a_collective_for_one_that_asks(works: bool) -> None:
    """Rank 1 is elsewhere, and a child of it computes what it asks for, or does nothing."""
    history = job(2)
    asks(NAPS, FIRST + 1, history)
    started(history, COMPUTES if works else None, cores=0.95 if works else 0.0, parent=FIRST + 1)
    stands(history, FIRST, BARRIER, FOR_EVER, LATE)
    verdict = judged(history, LATE)

    told = ("busy", "waiting_on_work") if works else ("hung", "stalled_collective")
    assert (verdict.state, verdict.cause) == told


def test_ranks_that_spin_for_each_other_never_come_out() -> None:
    """Each of them burns a core, and neither works."""
    history = job(2)
    asks(SPINS, FIRST, history)
    asks(SPINS, FIRST + 1, history)
    for pid in (FIRST, FIRST + 1):
        uses(history, pid, 0.95, 0.0, LATE)
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")


def test_what_another_job_sends_is_no_traffic_of_ranks_whose_own_connections_rest() -> None:
    """Two jobs share the loopback, or a card of the network: ranks that wait for each other are not slow by what the other one sends."""
    case = RECORDINGS / "exposed_communication/fires/exposed_communication"
    recording, at = load_case(case), expected_of(case).at
    pids = {
        one.reading.pid
        for one in recording.records
        if isinstance(one.reading, Process) and one.reading.rank is not None
    }
    rests = [
        Record(
            at=when,
            reading=Traffic(pid=pid, connections=2, received_bytes=9, sent_bytes=9, queued_bytes=0, retransmits=0),
        )
        for when in (recording.records[0].at, at - 0.1)
        for pid in pids
    ]

    both = replace(recording, records=tuple(sorted((*recording.records, *rests), key=lambda one: one.at)))

    assert diagnose(recording, at).cause == "exposed_communication"
    assert diagnose(both, at).cause != "exposed_communication"
