"""A rank that runs Python while the others wait for it: work that comes to its end, unless its loop waits for a condition."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.moving.loops import COUNTED_LOOP
from perfwatch.triage.moving.memory import GUESSED
from perfwatch.triage.shares.going_through import LASTS
from perfwatch_probes.readings import Frame, GpuBinding, SourceLine, Stack, Thread, Wait
from tests.cards import h200, load
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    LOOK_SECONDS,
    MODULE,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    runs,
    stands,
    uses,
)

PATIENCE = 60.0
SCORE = LIB + "site-packages/sacrebleu/metrics/base.py"
CALLS: Frames = (Frame("evaluate", TRAIN, 77), MODULE)
SCORES: tuple[Frames, ...] = tuple((Frame(inner, SCORE, 40), *CALLS) for inner in ("count", "match", "corpus_score"))
LINES = {
    "a library's call": SourceLine(
        file=TRAIN, line=77, text="bleu = corpus_score(said, meant)", calls=("corpus_score",)
    ),
    "not read": None,
}
HALF_AN_HOUR = Wait(call="futex", number=202, kind="futex", remaining_seconds=1800.0)  # of a group with a timeout
SPINS = Wait(call="", number=-1, kind="none")  # it does not sleep, but asks its card
AT_THE_LOSS: Frames = (Frame("step", TRAIN, 14), MODULE)
COUNTS = SourceLine(file=TRAIN, line=77, text="total += score(one)", calls=("score",), loops=("for",))
WAITS_FOR_A_CONDITION = SourceLine(file=TRAIN, line=77, text="ready = score()", calls=("score",), loops=("while",))


def computes(
    line: SourceLine | None, until: float, bytes_per_second: float = 0.0, trained: bool = True, wait: Wait = FOR_EVER
) -> History:
    """The first of three ranks, at full core, with changing stacks."""
    history = job(3, trained)
    if line is not None:
        history.add(1.0, line)
    runs(history, FIRST, SCORES, STOPPED, until, bytes_per_second=bytes_per_second)
    uses(history, FIRST, 0.95, bytes_per_second, until)
    for rank in (1, 2):
        if wait is SPINS:
            spins(history, FIRST + rank, f"GPU-{rank}", until)
        else:
            stands(history, FIRST + rank, BARRIER, wait, until)
    return history


def spins(history: History, pid: int, uuid: str, until: float) -> None:
    """A rank that asks its card again and again for a value, while a kernel there waits for the other ranks."""
    history.add(1.0, h200(uuid, pid - FIRST))
    history.add(1.0, GpuBinding(pid=pid, uuids=(uuid,), how="nvml", cuda=True))
    for at in looks(STOPPED, until):
        ran = 5.0 + at - STOPPED
        history.add(
            at,
            Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=ran, run_seconds=ran, ran_ago_seconds=0.01),
        )
        history.add(
            at, Stack(pid=pid, tid=pid, frames=AT_THE_LOSS, samples=10, span_seconds=LOOK_SECONDS, owns_gil=False)
        )
        for reading in load("stalled_all_reduce", uuid):
            history.add(at, reading)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_rank_that_computes_for_the_others_is_suspected_and_gets_five_times_the_patience(
    line: SourceLine | None,
) -> None:
    """Nothing of it is flat but the count of its steps, so that even then the verdict is not sure."""
    history = computes(line, STOPPED + (COUNTED_LOOP + 1) * PATIENCE)

    soon = judged(history, STOPPED + 2 * PATIENCE)
    late = judged(history, STOPPED + (COUNTED_LOOP + 0.5) * PATIENCE)

    assert soon.state == "inconclusive"
    assert soon.suspect is not None
    assert soon.suspect.decides_in_seconds > PATIENCE
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert late.confidence <= GUESSED


@pytest.mark.parametrize(("trained", "wait"), [(True, FOR_EVER), (False, FOR_EVER), (False, HALF_AN_HOUR)])
def test_a_rank_in_a_loop_that_comes_to_its_end_is_at_work_until_that_has_lasted_too_long(
    trained: bool, wait: Wait
) -> None:
    """It is told where it works, and a loop over something endless is a hang as late as ever."""
    history = computes(COUNTS, STOPPED + (COUNTED_LOOP + 1) * PATIENCE, trained=trained, wait=wait)

    brief = judged(history, STOPPED + 0.9 * LASTS * PATIENCE)
    soon = judged(history, STOPPED + 1.1 * LASTS * PATIENCE)
    late = judged(history, STOPPED + (COUNTED_LOOP + 0.5) * PATIENCE)

    assert brief.state == "inconclusive"
    assert (soon.state, soon.cause) == ("busy", "waiting_on_work")
    assert "the other ranks wait in barrier for rank 0" in soon.summary
    assert "at evaluate (train.py:77)" in soon.summary
    assert late.state == "hung"
    assert late.confidence <= GUESSED


def test_ranks_that_wait_for_their_cards_in_a_collective_are_told_for_whom() -> None:
    """NCCL: they spin at the value of the loss, and nobody sees a collective in their stacks."""
    until = STOPPED + PATIENCE
    history = computes(COUNTS, until, wait=SPINS)
    history.add(1.0, SourceLine(file=TRAIN, line=14, text="loss.item()", calls=("loss.item",)))

    verdict = judged(history, STOPPED + 0.5 * PATIENCE)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "the other ranks wait in a collective for rank 0" in verdict.summary


def test_a_loop_that_waits_for_a_condition_gets_no_more_than_the_patience() -> None:
    """It may turn for ever."""
    history = computes(WAITS_FOR_A_CONDITION, STOPPED + 2 * PATIENCE)

    verdict = judged(history, STOPPED + 1.2 * PATIENCE)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")


def test_a_rank_that_writes_data_meanwhile_is_at_work() -> None:
    """Predictions as JSON: the thread itself writes them."""
    until = STOPPED + 3 * PATIENCE
    history = computes(None, until, bytes_per_second=4e6)

    verdict = judged(history, until)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert [culprit.rank for culprit in verdict.culprits] == [0]
    assert "for rank 0" in verdict.summary


LOADER = TORCH + "utils/data/"
LOADS: tuple[Frames, ...] = tuple(
    (
        Frame("documents", TRAIN, line),
        Frame("_IterableDatasetFetcher.fetch", LOADER + "_utils/fetch.py", 35),
        Frame("_SingleProcessDataLoaderIter._next_data", LOADER + "dataloader.py", 801),
        MODULE,
    )
    for line in (42, 44, 45)
)


def loads(until: float, *besides: Frames) -> History:
    """The first of three ranks loads its own batches and reads all the while, as those do that filter every sample out."""
    history = job(3)
    runs(history, FIRST, (*LOADS, *besides), STOPPED, until, bytes_per_second=4e6)
    uses(history, FIRST, 0.95, 4e6, until)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, until)
    return history


def test_a_rank_that_gives_itself_no_batch_while_the_others_wait_is_suspected_however_much_it_reads() -> None:
    """A batch may take long: five times the patience, and even then it is not sure."""
    history = loads(STOPPED + (COUNTED_LOOP + 1) * PATIENCE)

    brief = judged(history, STOPPED + 0.9 * LASTS * PATIENCE)
    soon = judged(history, STOPPED + 1.1 * LASTS * PATIENCE)
    late = judged(history, STOPPED + (COUNTED_LOOP + 0.5) * PATIENCE)

    assert brief.suspect is None or brief.suspect.state != "hung"
    assert soon.suspect is not None
    assert (soon.suspect.state, soon.suspect.cause) == ("hung", "stalled_collective")
    assert soon.suspect.decides_in_seconds > PATIENCE
    assert (late.state, late.cause) == ("hung", "stalled_collective")
    assert late.confidence <= GUESSED
    assert [culprit.rank for culprit in late.culprits] == [0]
    assert late.culprits[0].frame is not None
    assert late.culprits[0].frame.startswith("documents")


def test_a_rank_that_was_seen_in_a_pass_of_its_model_has_had_its_batch() -> None:
    """What the others wait for is then another matter: they may be in another group."""
    until = STOPPED + (COUNTED_LOOP + 1) * PATIENCE

    verdict = judged(loads(until, *STEP), until)

    assert verdict.state != "hung"
