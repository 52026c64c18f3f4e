"""Counts of process groups and of NCCL's RAS service: which rank is behind."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.flight_record import parse as parse_record
from perfwatch_probes.nccl_report import parse as parse_report
from perfwatch_probes.readings import (
    Communicator,
    Frame,
    GroupMember,
    Network,
    Operation,
    ProbeCall,
    Process,
    ProcessEnded,
    Reading,
    RecordedGroup,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.probes.ras_answers import ras_answer
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.triage.group_looks import PIDS, RECORDED, accused, asleep, case, records, report, said
from tests.triage.rank_looks import BARRIER, FOR_EVER, MODULE, TRAIN, Frames

# What counts and recorders of process groups say: who is behind, who waits for whom, who means another call. Recorded on two H200.


SENDS_FIRST = RECORDINGS / "mismatched_collective" / "fires" / "both_send_first-nccl"
STALLED, MISMATCHED = "stalled_collective", "mismatched_collective"


def named(verdict: Verdict) -> tuple[str | None, list[int | None]]:
    """The cause that is told or suspected, and the ranks that are its culprits."""
    assert not [one for one in verdict.missing if one.witness.startswith("rule ")]
    suspected = verdict.suspect.cause if verdict.suspect is not None else None
    return verdict.cause or suspected, [one.rank for one in verdict.culprits]


def of_groups(verdict: Verdict) -> list[str]:
    """What is cited of the groups' own counts."""
    return [one.observed for one in verdict.evidence if one.witness in ("nccl_ras", "flight_recorder")]


@pytest.mark.parametrize("look", [report("hung.json"), records("hung")], ids=["ras", "recorders"])
def test_counts_that_stand_still_name_the_laggard(look: list[Reading]) -> None:
    """Rank 1 has called 19 times less often: not the leader is suspected, and the call has one number in both sources."""
    verdict = judge(case(look, look))

    assert named(verdict) == (STALLED, [1])
    assert "rank 1 never joined all_reduce 3199" in verdict.summary
    assert "rank 0 waits for it" in verdict.summary
    assert of_groups(verdict)[0].startswith("rank 0 at 3217, rank 1 at 3198")


def test_the_recorders_tell_size_and_type_of_the_call() -> None:
    """RAS counts calls, and knows neither."""
    assert "all_reduce 3199 of Float 6291456" in judge(case(records("hung"), records("hung"))).summary


def test_unequal_counts_that_grow_are_a_healthy_job() -> None:
    """RAS itself says MISMATCH of it."""
    assert named(judge(case(report("healthy_1.json"), report("healthy_2.json")))) == (None, [])


@pytest.mark.parametrize(("looks", "apart_seconds"), [(1, 3.0), (2, 1.0)])
def test_one_look_says_nothing(looks: int, apart_seconds: float) -> None:
    """Two are compared, and not ones that are nearly the same moment."""
    assert named(judge(case(*[report("hung.json")] * looks, apart_seconds=apart_seconds))) == (None, [])


@pytest.mark.parametrize("look", [records("opposite_order"), report("opposite_order.json")], ids=["recorders", "ras"])
def test_groups_called_in_opposite_order_are_a_ring(look: list[Reading]) -> None:
    """Nobody is at the end of it. The recorders know both lines; by counts each rank is ahead in one communicator."""
    verdict = judge(case(look, look))
    lines = {(one.frame or "").split(" ")[0] for one in verdict.culprits}

    assert named(verdict) == (MISMATCHED, [0, 1])
    assert "wait for each other in a ring" in verdict.summary
    assert lines == ({"sum_loss", "sum_tokens"} if isinstance(look[0], RecordedGroup) else {""})


def test_a_rank_that_is_gone_is_at_the_end() -> None:
    """RAS does not reach it any more."""
    verdict = judge(case(report("one_dead.json"), report("one_dead.json")))

    assert named(verdict) == (STALLED, [1])
    assert "RAS does not hear" in verdict.summary


def shared(*places: tuple[int, str, bool], counts: tuple[int, int] = (9, 8)) -> list[Communicator]:
    """A communicator of two processes, by pid, host and whether it is the job's; the second one is behind."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, host=host, local=local, launched={"Broadcast": count})
        for rank, ((pid, host, local), count) in enumerate(zip(places, counts, strict=True))
    )
    return [Communicator(communicator="c", size=len(places), members=members)]


@pytest.mark.parametrize(
    ("look", "here", "behind"),
    [
        (shared((607, "a", True), (608, "a", True)), 2, [1]),
        (shared((607, "a", True), (900, "a", False)), 2, []),  # an engine that rank 0 sends its weights to
        (shared((900, "b", False), (901, "b", False)), 2, []),  # the engine's own group
        (shared((607, "a", True), (900, "a", False)), 1, [1]),  # a rank of which nobody could read whose it is
        (shared((607, "a", True), (700, "b", False)), 1, [1]),
    ],
)
def test_a_group_as_large_as_the_job_is_the_jobs_where_no_other_process_is_in_it(
    look: list[Communicator], here: int, behind: list[int]
) -> None:
    """Else its numbers are not those of the ranks, and none of them is accused."""
    assert named(judge(case(look, look, here=here))) == (STALLED if behind else None, behind)


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
    verdict = judge(case(look, look, world=4))

    assert named(verdict) == (STALLED, [3])
    assert "ranks 0, 1, 2 wait for it" in verdict.summary


def test_pipeline_stages_differ_by_design() -> None:
    """Sends and receives are no calls in which all must meet: nobody is behind, and nothing was mixed up."""
    look = [
        structs.replace(one, operations=tuple(structs.replace(o, point_to_point=True) for o in one.operations))
        for one in (group(0, "0", (0, 1), [(5, 9, "scheduled")]), group(1, "0", (0, 1), [(2, 4, "scheduled")]))
    ]
    assert named(judge(case(look, look))) == (None, [])


def test_a_rank_whose_recorder_cannot_be_read_is_not_accused() -> None:
    """Nobody knows whether it has come."""
    (zero,) = [one for one in records("hung") if one.rank == 0]

    assert named(judge(case([zero], [zero]))) == (None, [])


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("profiling_name", "nccl:all_gather", "operation"),
        ("input_sizes", [[12]], "size"),
        ("input_dtypes", ["Half"], "dtype"),
    ],
)
def test_a_call_that_means_another_thing_in_one_rank_is_found(field: str, value: Any, what: str) -> None:
    """One entry of rank 1 differs, and both have got past it: training goes on with garbage."""
    dumps = [pickle.loads((RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle").read_bytes()) for rank in (0, 1)]
    dumps[1]["entries"][-1][field] = value
    look = [
        one for rank, dump in enumerate(dumps) for one in parse_record(json.dumps(dump).encode(), PIDS[rank], rank, "")
    ]
    verdict = judge(case(look))

    assert verdict.state == "slow"
    assert named(verdict) == (MISMATCHED, [0, 1])
    assert f"called operation 3198 with different {what}s, and NCCL continued" in verdict.summary


@pytest.mark.parametrize("name", ["hung", "opposite_order"])
def test_ranks_that_agree_are_not_accused(name: str) -> None:
    """Neither the hung pair nor the ring mixes anything up."""
    assert named(judge(case(records(name)))) == (None, [])


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

    assert named(judge(case(look, look, world=4))) == (None, [])


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


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (
            (record(0, "send 0->1", "recv 0<-1"), record(1, "send 1->0", "recv 1<-0")),
            "each sends first, and the one that it sends to does not receive",
        ),
        (
            (record(0, "recv 0<-1", "send 0->1"), record(1, "recv 1<-0", "send 1->0")),
            "each receives first, and none of them sends",
        ),
        (tuple(record(rank, f"send {rank}->{(rank + 1) % 3}", world=3) for rank in range(3)), "each sends first"),
        # The other one waits in a collective for the sender to come to it.
        (
            (
                record(0, "send 0->1", "all_reduce", numbers=(7, 3)),
                record(1, "all_reduce", "recv 1<-0", numbers=(3, 7)),
            ),
            "",
        ),
    ],
    ids=["both_send", "both_receive", "three", "send_and_collective"],
)
def test_ranks_that_exchange_in_an_order_that_nobody_completes_wait_for_each_other(
    look: tuple[RecordedGroup, ...], words: str
) -> None:
    """Two that both send first, or both receive first; three in a circle; a send to a rank that is in a collective."""
    verdict = judge(case(look, look, world=len(look)))

    assert named(verdict) == (MISMATCHED, list(range(len(look))))
    assert "wait for each other in a ring" in verdict.summary
    assert words in verdict.summary


@pytest.mark.parametrize(
    "look",
    [
        (record(0, "send 0->1"), record(1, "recv 1<-0", "send 1->0")),  # it is under way
        (record(0, "send 0->1"), record(1, "send 1->0.")),  # rank 1 is in no call: its own chain tells why
        (record(0, "send 0->1.", "recv 0<-1"), record(1, "recv 1<-0", "send 1->0")),  # sent: it may wait for its turn
        # Of a call in a batch the recorder never says that it is over.
        (record(0, "send 0->1", "coalesced.", "all_reduce"), record(1, "send 1->0", "coalesced.", "all_reduce")),
    ],
    ids=["received", "absent", "sent", "batch"],
)
def test_an_exchange_that_may_complete_accuses_nobody(look: tuple[RecordedGroup, ...]) -> None:
    """A pipeline that stands for another reason is not accused of its order."""
    assert named(judge(case(look, look))) == (None, [])


def level(calls: int) -> Communicator:
    """A communicator in which both ranks have called equally often."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, local=True, launched={"AllReduce": calls}) for rank, pid in PIDS.items()
    )
    return Communicator(communicator="a", size=2, members=members)


def in_one_call(calls: int) -> Case:
    """Both ranks stand in one barrier for 70 s, and nothing travels; RAS counts so many calls of each."""
    asked = case([level(calls)], [level(calls)])
    for second in range(1, 70):
        for pid in PIDS.values():
            asked.history.add(float(second), Stack(pid=pid, tid=pid, frames=BARRIER, samples=4))
            asked.history.add(float(second), blocked(pid, float(second)))
        asked.history.add(float(second), Network(interface="eth0", kind="netdev", received_bytes=9, sent_bytes=9))
    asked.history.at = 70.0
    return Case(asked.history, session())


def blocked(pid: int, ran_ago: float | None = None) -> Thread:
    """A training thread that waits for ever."""
    return Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0, voluntary_switches=9,
                  wait=FOR_EVER, ran_ago_seconds=ran_ago)  # fmt: skip


@pytest.mark.parametrize(("calls", "state"), [(4, "hung"), (0, "inconclusive")])
def test_a_communicator_that_has_counted_nothing_is_no_witness(calls: int, state: str) -> None:
    """Its ranks only send to each other, which RAS does not count: they are then not said to be in one collective."""
    verdict = judge(in_one_call(calls))

    assert (verdict.state, verdict.cause) == (state, "wedged_collective" if calls else None)


def test_a_count_that_stood_while_steps_were_made_is_no_witness() -> None:
    """The steps do without that group: its silence was no halt then, and is none now."""
    asked = in_one_call(4)
    witnessed = of_groups(judge(asked))
    for number, at in enumerate((0.5, 1.5, 2.5)):
        asked.history.add(at, Steps(pid=PIDS[0], tid=PIDS[0], count=10 + 5 * number, step_ago_seconds=0.1))

    assert len(witnessed) == 1
    assert of_groups(judge(Case(asked.history, session()))) == []


@pytest.mark.parametrize("at", [27.0, 30.0, 37.9])
def test_without_the_recorders_ranks_that_send_are_not_said_to_be_in_one_collective(at: float) -> None:
    """RAS counts nothing of what they do; recorded on two H200."""
    whole = load_case(SENDS_FIRST)
    kept = tuple(one for one in whole.records if not isinstance(one.reading, RecordedGroup))

    assert diagnose(replace(whole, records=kept), at).cause != "wedged_collective"
    assert diagnose(whole, at).cause in (MISMATCHED, None)


def at_line(line: int) -> Frames:
    """Where the rank stands that has not come."""
    return (Frame("step", TRAIN, line), MODULE)


def standing(
    at: float,
    *looks: Sequence[Reading],
    moves: Sequence[int] = (),
    seen: Sequence[int] = (0, 1),
    step: Steps | None = None,
) -> Verdict:
    """Groups that were asked at the beginning, and then looks at the ranks, each second.

    ``moves``: the lines that rank 1 is at, one second after the other; else it stands. ``seen``: the ranks that are looked at.
    """
    asked = case(*looks)
    began = len(looks) * 3 + 1
    for second in range(began, int(at)):
        line = moves[(second - began) % len(moves)] if moves else 9
        for rank in seen:
            pid, frames = PIDS[rank], at_line(line) if rank else BARRIER
            asked.history.add(float(second), Stack(pid=pid, tid=pid, frames=frames, samples=4))
            asked.history.add(float(second), blocked(pid))
    if step is not None:
        asked.history.add(at - 1.0, step)
    asked.history.at = at
    return judge(Case(asked.history, session()))


@pytest.mark.parametrize("look", [report("hung.json"), records("hung")], ids=["ras", "recorders"])
@pytest.mark.parametrize("at", [80.0, 300.0])
def test_an_answer_holds_while_every_rank_is_seen_to_stand(look: list[Reading], at: float) -> None:
    """However long ago the service was asked: a hang that was told does not grow doubtful by itself; how old it is is said."""
    verdict = standing(at, look, look)

    assert (verdict.state, *named(verdict)) == ("hung", STALLED, [1])
    assert "rank 1 never joined all_reduce 3199" in verdict.summary
    assert (
        f"unchanged for 3.0 s when last asked, {duration(at - 3)} ago, and no rank has moved since"
        in of_groups(verdict)[0]
    )


@pytest.mark.parametrize("lines", [2, 12, 30])
def test_a_thread_that_has_moved_since_ends_it(lines: int) -> None:
    """After 40 s an answer is then about nothing any more; each of many lines is as rare as a torn stack, all together are not."""
    verdict = standing(80.0, report("hung.json"), report("hung.json"), moves=range(10, 10 + lines))

    assert verdict.state == "inconclusive"
    assert of_groups(verdict) == []


def test_a_step_made_since_ends_it() -> None:
    """The rank went on: what was counted before is not about now."""
    step = Steps(pid=PIDS[1], tid=PIDS[1], count=8, step_ago_seconds=5.0)

    assert of_groups(standing(80.0, report("hung.json"), report("hung.json"), step=step)) == []


def test_a_torn_stack_now_and_then_does_not() -> None:
    """A nonblocking dump tears some 3 % of them."""
    verdict = standing(80.0, report("hung.json"), report("hung.json"), moves=[9] * 19 + [33])

    assert len(of_groups(verdict)) == 1


def test_a_rank_that_nobody_has_looked_at_since_ends_it() -> None:
    """Nobody knows whether it moved."""
    soon, late = (standing(at, report("hung.json"), report("hung.json"), seen=(0,)) for at in (15.0, 80.0))

    assert (len(of_groups(soon)), len(of_groups(late))) == (1, 0)
    assert soon.suspect is not None
    assert soon.suspect.silent_seconds == pytest.approx(3.0)


@pytest.mark.parametrize("seen", [(0, 1), (0,)])
def test_one_dump_of_each_recorder_suffices_where_nothing_has_moved_since(seen: tuple[int, ...]) -> None:
    """The second question would bring the same answer, and another line on the job's standard error."""
    verdict = standing(80.0, records("hung"), seen=seen)

    assert bool(of_groups(verdict)) is (len(seen) == 2)


# NCCL's RAS service counts the collectives of each rank: what follows from the counts, and for how long an answer holds.


RAS_COUNTS_STALLED = ("stalled_collective", [1])
NO_ACCUSATION: tuple[None, list[int | None]] = (None, [])
OPERATIONS = {
    "2.24.3": "collective 42",
    "2.25.1": "collective 42",
    "2.26.6": "all_reduce 42",
    "2.27.7": "all_reduce 42",
    "2.30.7": "all_reduce 42",
}
VERSIONS = pytest.mark.parametrize("version", OPERATIONS)


@pytest.mark.parametrize(("version", "operation"), OPERATIONS.items())
def test_the_text_of_every_version_names_the_rank_that_is_behind(version: str, operation: str) -> None:
    """Recorded on two H200, also with an NCCL that has one counter for all kinds of collectives."""
    verdict = said(report("hung.txt", version), report("hung.txt", version))

    assert accused(verdict) == RAS_COUNTS_STALLED
    assert verdict.culprits[0].pid == PIDS[1]
    assert f"rank 1 never joined {operation}:" in verdict.summary
    assert "rank 0 waits for it" in verdict.summary


@VERSIONS
def test_two_texts_of_a_healthy_job_accuse_no_rank(version: str) -> None:
    """Whether the counts are level in both texts or grow between them, and for however long one text holds."""
    first, second = (report(f"healthy_{look}.txt", version) for look in (1, 2))

    assert accused(said(first, second)) == NO_ACCUSATION
    for look in (first, second):
        assert accused(said(look, look, apart_seconds=1.0)) == NO_ACCUSATION


@VERSIONS
def test_a_group_that_a_newer_text_does_not_name_has_caught_up(version: str) -> None:
    """The text lists only groups whose ranks' counts differ."""
    hung, level = report("hung.txt", version), report("healthy_2.txt", "2.25.1")

    assert accused(said(hung, hung)) == RAS_COUNTS_STALLED
    assert accused(said(hung, hung, level)) == NO_ACCUSATION


def test_of_a_large_group_the_one_that_is_behind_is_named_from_the_text() -> None:
    """The text names one of eight and tells the seven others in one line."""
    head, _, tail = ras_answer("2.26.6_hung.txt").partition("  Rank 0")
    text = head.replace("         2         2         2   R", "         8         8         8   R")
    text += "  7 ranks have launched up to operation 42\n  Rank 1" + tail.partition("  Rank 1")[2]
    look = [
        structs.replace(one, members=tuple(structs.replace(m, local=m.pid is not None) for m in one.members))
        for one in parse_report(text.replace("process 7691", f"process {PIDS[1]}"))
    ]
    verdict = said(look, look, world=8)

    assert accused(verdict) == RAS_COUNTS_STALLED
    assert verdict.culprits[0].pid == PIDS[1]
    assert "ranks 0, 2, 3, 4, 5, 6, 7 wait for it" in verdict.summary


def ras_counts_group(
    name: str,
    counts: tuple[int, ...] = (41, 40),
    pids: tuple[int, ...] = (PIDS[0], PIDS[1]),
    state: str = "running",
    hosts: tuple[str, str] = ("a", "a"),
) -> Communicator:
    """A group in whose counts the second rank is behind, or cannot be reached."""
    members = tuple(
        GroupMember(rank=rank, pid=pid, host=hosts[rank], local=True, state=state if rank else "running",
                    launched={"AllReduce": count} if state == "running" or not rank else {})
        for rank, (pid, count) in enumerate(zip(pids, counts, strict=True))
    )  # fmt: skip
    return Communicator(communicator=name, size=2, members=members, missing=int(state != "running"))


def counted(ranks: int, seconds: float, laggard: int) -> Verdict:
    """So many ranks whose stacks may not be read, one of which has made a call less than the others."""
    counts = {rank: 40 if rank == laggard else 41 for rank in range(ranks)}
    members = tuple(
        GroupMember(rank=rank, pid=PIDS.get(rank, 700 + rank), host="a", local=True, launched={"AllReduce": count})
        for rank, count in counts.items()
    )
    looks: list[list[Reading]] = [
        [
            Communicator(communicator="c", size=ranks, members=members),
            *map(asleep, range(ranks), [3.0 * number] * ranks),
        ]
        for number in range(int(seconds / 3.0 + 1))
    ]
    return said(*looks, world=ranks)


def test_ranks_whose_stacks_may_not_be_read_are_still_counted() -> None:
    """Eight ranks, ptrace denied for all: the one that is behind is reported once the hang timeout of 60 s is over."""
    early, late = counted(8, 30.0, laggard=5), counted(8, 70.0, laggard=5)

    assert early.state == "inconclusive"
    assert early.suspect is not None
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert [culprit.rank for culprit in late.culprits] == [5]
    assert "ranks 0, 1, 2, 3, 4, 6, 7 wait for it" in late.summary


def test_a_rank_on_another_host_is_named_with_its_host() -> None:
    """Of four ranks two run on this machine."""
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


def test_of_two_processes_with_one_rank_the_younger_counts() -> None:
    """An elastic restart leaves the old one for a moment."""
    old = Process(
        pid=500, start_ticks=0, parent_pid=1, name="python", command=("python",), python=True, rank=1, world_size=2
    )
    verdict = said([old, *report("hung.json")], report("hung.json"))

    assert verdict.coverage.ranks_seen == 2
    assert accused(verdict) == RAS_COUNTS_STALLED
    assert verdict.culprits[0].pid == PIDS[1]


def test_a_ras_service_that_does_not_answer_is_evidence_beside_a_stopped_rank() -> None:
    """Its thread is stopped with the process."""
    recording = load_case(RECORDINGS / "stopped" / "fires" / "stopped-nccl")
    history = History(recording.records, recording.end + 1.0)
    before = judge(Case(history, recording.session))
    reason = "NCCL's RAS service at localhost:28028 did not answer"
    call = ProbeCall(probe="nccl_ras", entity="job", duration_seconds=3.0, outcome="unavailable", reason=reason)
    history.add(recording.end, call)
    after = judge(Case(history, recording.session))

    assert (after.state, after.cause) == (before.state, before.cause) == ("hung", "stopped")
    assert "nccl_ras" not in {one.witness for one in before.evidence}
    assert [one.observed for one in after.evidence if one.witness == "nccl_ras"] == [f"no greeting: {reason}"]


LIB = "/venv/lib/python3.12/site-packages/torch/distributed/"
RENDEZVOUS = (
    Frame("_env_rendezvous_handler", LIB + "rendezvous.py", 258),
    Frame("init_process_group", LIB + "distributed_c10d.py", 1700),
    Frame("<module>", "/app/train.py", 12),
)
RESTARTED = 70.0


def process(pid: int, rank: int, start_ticks: int) -> Process:
    """A rank that torchrun, pid 10, has started."""
    return Process(pid=pid, start_ticks=start_ticks, parent_pid=10, name="python", command=("python", "train.py"), python=True,
                   torch_loaded=True, rank=rank, world_size=2, age_seconds=1.0)  # fmt: skip


def stood(state: str = "running", ended: tuple[int, ...] = (20, 21)) -> History:
    """Two ranks of torchrun of which RAS says the same for 70 s, when some of them end."""
    torchrun = ("python", "/env/bin/torchrun", "train.py")
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=1, parent_pid=1, name="torchrun", command=torchrun, python=True))
    for rank, pid in enumerate((20, 21)):
        history.add(0.0, process(pid, rank, 100))
        for at in range(2, int(RESTARTED), 2):
            history.add(float(at), Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0))
    for at in range(2, int(RESTARTED), 2):
        history.add(float(at), ras_counts_group("old", pids=(20, 21), state=state))
    for pid in ended:
        history.add(RESTARTED, ProcessEnded(pid=pid, start_ticks=100))
    return history


def restarted(state: str, seconds: float) -> Verdict:
    """So long after a restart: the new rank 0 waits at the rendezvous for the new rank 1, which still loads."""
    history = stood(state)
    for rank, pid in enumerate((30, 31)):
        history.add(RESTARTED + 0.5, process(pid, rank, 7000))
    for after in range(1, int(seconds)):
        at = RESTARTED + after
        wait = Wait(call="poll", number=7, kind="poll", remaining_seconds=1700.0 - after)
        history.add(at, Thread(pid=30, tid=30, name="python", state="S", cpu_seconds=3.0, run_seconds=3.0,
                               voluntary_switches=50, ran_ago_seconds=after - 1.0, wait=wait))  # fmt: skip
        history.add(at, Stack(pid=30, tid=30, thread="MainThread", frames=RENDEZVOUS, samples=3, span_seconds=0.5))
        history.add(at, Thread(pid=31, tid=31, name="python", state="R", cpu_seconds=after, run_seconds=after))
        frames = (Frame("load", "/app/load.py", 5 + after % 3), Frame("<module>", "/app/train.py", 9))
        history.add(at, Stack(pid=31, tid=31, thread="MainThread", frames=frames, samples=3, span_seconds=0.5))
    return judged(history, RESTARTED + seconds)


def judged(history: History, at: float) -> Verdict:
    """The verdict on torchrun's job at that moment."""
    history.at = at
    return judge(Case(history, session(root_pids=(10,))))


def causes(verdict: Verdict) -> set[str | None]:
    """Every cause that was found, suspected ones too."""
    return {verdict.cause, *(one.cause for one in verdict.findings)}


@pytest.mark.parametrize("state", ["running", "unresponsive", "dead"])
@pytest.mark.parametrize("seconds", [5.0, 20.0, 38.0])
def test_ranks_that_were_restarted_are_not_called_hung_for_those_before_them(state: str, seconds: float) -> None:
    """An elastic restart ended the hang; the counts are of the ranks before it."""
    verdict = restarted(state, seconds)

    assert verdict.state != "hung"
    assert "stalled_collective" not in causes(verdict)


def test_an_answer_that_comes_late_is_about_the_ranks_before_the_restart_too() -> None:
    """RAS was asked while they lived."""
    late = stood()
    for rank, pid in enumerate((30, 31)):
        late.add(RESTARTED + 0.5, process(pid, rank, 7000))
    late.add(RESTARTED + 2.0, ras_counts_group("old", pids=(20, 21)))

    assert "stalled_collective" not in causes(judged(late, RESTARTED + 3.0))


def test_a_rank_that_ended_and_was_not_replaced_is_still_waited_for() -> None:
    """No other process has its rank."""
    verdict = judged(stood(ended=(21,)), RESTARTED + 1.0)

    assert accused(verdict) == RAS_COUNTS_STALLED
    assert verdict.culprits[0].pid == 21


def test_a_helper_that_inherited_a_rank_number_and_ended_is_no_rank_before_it() -> None:
    """It came later than the rank, and went while that goes on."""
    hung = case([ras_counts_group("c")], [ras_counts_group("c")], [ras_counts_group("c")])
    hung.history.add(4.0, Process(pid=900, start_ticks=500, parent_pid=1, name="python", command=("python", "log.py"),
                                  python=True, rank=0, world_size=2))  # fmt: skip
    hung.history.add(6.0, ProcessEnded(pid=900, start_ticks=500))

    assert accused(judge(Case(hung.history, session()))) == RAS_COUNTS_STALLED


def test_a_group_that_its_ranks_have_ended_does_not_stand() -> None:
    """A newer answer speaks for the same processes, and names another group of theirs alone."""
    assert (
        accused(said([ras_counts_group("c")], [ras_counts_group("c")], [ras_counts_group("d", (1, 1))]))
        == NO_ACCUSATION
    )


def test_a_group_of_processes_that_an_answer_does_not_speak_for_stands() -> None:
    """Groups without a common rank are two networks of RAS on one port: either of them may answer."""
    other = ras_counts_group("d", (1, 1), pids=(702, 703))

    assert accused(said([ras_counts_group("c")], [ras_counts_group("c")], [other], world=4)) == RAS_COUNTS_STALLED


def test_what_a_joined_recording_has_left_out_is_no_group_that_has_ended() -> None:
    """Of a large group it keeps the answers of one host, which was not asked last."""
    hosts = ("a", "b")
    verdict = said(
        [ras_counts_group("c", hosts=hosts)],
        [ras_counts_group("c", hosts=hosts)],
        [ras_counts_group("d", (1, 1), hosts=hosts)],
    )

    assert accused(verdict) == RAS_COUNTS_STALLED
