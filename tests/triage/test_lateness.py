"""A straggler is named together with what holds it back: its loader, its card, its CPUs, or its own line."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Process, ProcessUsage, Reading, Stack, Thread
from tests.cards import bound, h200, under
from tests.recorded import RECORDINGS, load_case
from tests.training import TRAIN, confidence_in

FIRES = RECORDINGS / "straggling_rank" / "fires"
COLLECTS = RECORDINGS / "garbage_collection" / "fires" / "collects_in_each_step"


def judged(name: str, records: tuple[Record, ...] | None = None) -> Verdict:
    """A recorded case, possibly with other readings."""
    recording = load_case(FIRES / name)
    at = expected_of(FIRES / name).at
    changed: Recording = recording if records is None else replace(recording, records=records)
    return diagnose(changed.until(at), at)


def test_its_own_line_is_named_where_nothing_else_holds_it_back() -> None:
    """It prepares its batches slowly."""
    verdict = judged("straggling_rank-nccl")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "user_code")
    assert verdict.culprits[0].rank == 1
    assert (verdict.culprits[0].frame or "").startswith("prepare_batch")


def test_its_loader_is_named_with_the_worker_and_its_line() -> None:
    """The rank only waits; its worker decodes."""
    verdict = judged("straggling_rank-loader")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "data")
    assert verdict.culprits[0].worker_pid is not None
    assert (verdict.culprits[0].frame or "").startswith("decode")


def test_a_card_that_is_held_down_by_heat_is_named() -> None:
    """Simulated: the card on which the late rank computes says so, and its clock is below that of the others."""
    verdict = judged("simulated-longer_batches_by_its_card-throttled_card")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "node")
    assert [(one.rank, one.gpu) for one in verdict.culprits] == [(1, 1)]
    assert "its card gpu 1 runs at 1185 MHz, the others at 1980" in verdict.summary


def test_a_hot_card_that_has_nothing_to_do_holds_nobody_back() -> None:
    """Simulated: the same of a rank that prepares its batches slowly, while its card idles."""
    verdict = judged("simulated-straggling_rank-nccl-throttled_card_that_idles")

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "user_code")
    assert (verdict.culprits[0].frame or "").startswith("prepare_batch")
    assert "MHz" not in verdict.summary


@pytest.mark.parametrize("case", ["straggling_rank", "straggling_rank_sleep"])
def test_a_rank_that_is_kept_from_its_cpus_is_told_so(case: str) -> None:
    """Simulated: whenever it wants to run it waits as long again, and the others do not."""
    late = judged(case).culprits[0].pid

    def crowded(record: Record) -> Record:
        thread = record.reading
        if not isinstance(thread, Thread) or thread.run_seconds is None:
            return record
        delay = thread.run_seconds if thread.pid == late else 0.0
        return structs.replace(record, reading=structs.replace(thread, run_delay_seconds=delay))

    verdict = judged(case, tuple(map(crowded, load_case(FIRES / case).records)))

    assert (verdict.cause, verdict.owner) == ("straggling_rank", "node")
    assert "waits for a CPU 50%" in verdict.summary
    assert [one.pid for one in verdict.culprits] == [late]
    assert (verdict.culprits[0].frame or "").startswith(("prepare_batch", "fetch_features"))


@pytest.mark.parametrize("case", ["other_rank_hardly_seen", "other_rank_waits_for_it"])
def test_a_rank_that_starves_is_no_sure_verdict_while_the_other_may_wait_for_it(case: str) -> None:
    """Four samples of rank 0, or all of them in a collective: then the name of the fault is another, and more looks will tell."""
    verdict = judged(f"../../starved_by_transforms/fires/{case}")

    assert (verdict.cause, verdict.culprits[0].rank) == ("starved_by_transforms", 1)
    assert verdict.confidence < CONFIDENT


@pytest.mark.parametrize(
    ("its", "others", "late_one"),
    [
        ("big_all_reduce", "big_all_reduce", False),
        ("idle_context", "big_all_reduce", True),
        ("idle_context", "idle_context", True),  # the collective runs on the hosts: no card is held by it
    ],
)
def test_ranks_whose_cards_do_the_same_are_all_in_time(its: str, others: str, late_one: bool) -> None:
    """Where their hosts wait differs by chance; a card whose host is late is free, or has more to do."""
    recording, at = load_case(FIRES / "straggling_rank"), expected_of(FIRES / "straggling_rank").at
    history = History(recording.until(at).records, at)
    ranks = Case(history, recording.session, recording.events).ranks
    late = judged("straggling_rank").culprits[0].pid
    for number, rank in enumerate(ranks):
        uuid = f"GPU-{number}"
        for reading in (h200(uuid, number), bound(rank.pid, uuid)):
            history.add(at - 12.0, reading)
        under(history, its if rank.pid == late else others, at - 12.0, at, uuid)

    verdict = judge(Case(history, recording.session, recording.events))

    assert (confidence_in(verdict, "straggling_rank") > 0) is late_one


@pytest.mark.parametrize(("share", "late"), [(0.05, True), (0.2, False)])
def test_a_rank_that_has_just_begun_is_not_late(share: float, late: bool) -> None:
    """The others wait for it once, while it imports its modules: in a fifth of its samples, that is, and not in a twentieth."""
    recording = load_case(FIRES / "straggling_rank-masked")
    its = judged("straggling_rank-masked").culprits[0].pid
    imports = (Frame("_handle_fromlist", "<frozen importlib._bootstrap>", 1415), Frame("main", TRAIN, 3))
    stacks = [one.reading for one in recording.records if isinstance(one.reading, Stack)]
    left = share * sum(stack.samples for stack in stacks if (stack.pid, stack.tid) == (its, its))
    records = []
    for record in recording.records:
        stack = record.reading
        if isinstance(stack, Stack) and (stack.pid, stack.tid) == (its, its) and stack.samples <= left:
            left -= stack.samples
            record = structs.replace(record, reading=structs.replace(stack, frames=imports))
        records.append(record)

    assert (judged("straggling_rank-masked", tuple(records)).cause == "straggling_rank") is late


def as_rank(reading: Reading, rank: int) -> Reading:
    """The same of another process, which is this rank of two."""
    pid = getattr(reading, "pid", None)
    changed: dict[str, Any] = {} if pid is None else {"pid": pid + rank}
    if pid is not None and getattr(reading, "tid", None) == pid:
        changed["tid"] = pid + rank
    if isinstance(reading, Process):
        changed |= {"rank": rank, "local_rank": rank, "world_size": 2, "local_world_size": 2}
    return structs.replace(reading, **changed)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_rank_with_most_objects_is_blamed_where_all_collect_all_the_time(largest: int) -> None:
    """The others have brief collections, and wait in every step for the one whose collections take long."""
    recording, at = load_case(COLLECTS), expected_of(COLLECTS).at
    both = [structs.replace(one, reading=as_rank(one.reading, rank)) for one in recording.records for rank in (0, 1)]
    pid = next(one.reading.pid for one in recording.records if isinstance(one.reading, Process))
    sizes = [
        ProcessUsage(
            pid=pid + rank,
            state="R",
            threads=1,
            cpu_seconds=1.0,
            major_faults=0,
            minor_faults=0,
            resident_bytes=(3 if rank == largest else 1) << 30,
        )
        for rank in (0, 1)
    ]
    both += [structs.replace(recording.records[-1], reading=one) for one in sizes]
    verdict = diagnose(replace(recording, records=tuple(both)).until(at), at)

    assert (verdict.state, verdict.cause) == ("slow", "garbage_collection")
    assert verdict.culprits[0].rank == largest
