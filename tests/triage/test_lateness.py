"""A straggler is named together with what holds it back: its loader, its card, its CPUs, or its own line."""

from dataclasses import replace

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Record, Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.ranks.lateness import excused, own_cause
from perfwatch.triage.rules import straggling_rank
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.verdict import Finding, Verdict
from perfwatch_probes.readings import Frame, Thread
from tests.cards import bound, h200, under
from tests.recorded import RECORDINGS, load_case
from tests.training import FORWARD, TRAIN, Training

FIRES = RECORDINGS / "straggling_rank" / "fires"


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


def test_a_rank_that_is_kept_from_its_cpus_is_told_so() -> None:
    """Simulated: whenever it wants to run it waits as long again, and the others do not."""
    recording = load_case(FIRES / "straggling_rank-masked")
    late = judged("straggling_rank-masked").culprits[0].pid

    def crowded(record: Record) -> Record:
        thread = record.reading
        if not isinstance(thread, Thread) or thread.run_seconds is None:
            return record
        delay = thread.run_seconds if thread.pid == late else 0.0
        return structs.replace(record, reading=structs.replace(thread, run_delay_seconds=delay))

    at = expected_of(FIRES / "straggling_rank-masked").at
    history = History(map(crowded, recording.records), at)
    case = Case(history, recording.session, recording.events)
    (rank,) = (one for one in case.ranks if one.pid == late)
    why = own_cause(case, rank, case.profile(rank, WINDOW_SECONDS))

    assert why.owner == "node"
    assert "waits for a CPU 50%" in why.words
    assert (why.culprit.frame or "").startswith("prepare_batch")


@pytest.mark.parametrize("case", ["other_rank_hardly_seen", "other_rank_waits_for_it"])
def test_a_rank_that_starves_is_no_sure_verdict_while_the_other_may_wait_for_it(case: str) -> None:
    """Four samples of rank 0, or all of them in a collective: then the name of the fault is another, and more looks will tell."""
    verdict = judged(f"../../starved_by_transforms/fires/{case}")

    assert (verdict.cause, verdict.culprits[0].rank) == ("starved_by_transforms", 1)
    assert verdict.confidence < CONFIDENT


@pytest.mark.parametrize(
    ("its", "others", "cause"),
    [
        ("big_all_reduce", "big_all_reduce", None),
        ("idle_context", "big_all_reduce", "straggling_rank"),
        ("idle_context", "idle_context", "straggling_rank"),  # the collective runs on the hosts: no card is held by it
    ],
)
def test_ranks_whose_cards_do_the_same_are_all_in_time(its: str, others: str, cause: str | None) -> None:
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

    found = straggling_rank.judge(Case(history, recording.session, recording.events))

    assert (found.cause if isinstance(found, Finding) else None) == cause


@pytest.mark.parametrize(("share", "begins"), [(0.05, False), (0.2, True)])
def test_a_rank_that_has_just_begun_is_not_late(share: float, begins: bool) -> None:
    """The others wait for it once, while it imports its modules."""
    imports = (
        Frame("SourceLoader.exec_module", "<frozen importlib._bootstrap_external>", 991),
        Frame("main", TRAIN, 3),
    )
    case = (
        Training(card=False).goes_on(10.0, [imports] * round(20 * share) + [FORWARD] * round(20 * (1 - share))).case()
    )

    assert excused(case, [(case.ranks[0], case.profile(case.ranks[0]))]) is begins
