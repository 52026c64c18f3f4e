"""A rank that runs Python while the others wait for it: work that comes to its end, unless its loop waits for a condition."""

import pytest

from perfwatch.probes.readings import Frame, SourceLine
from perfwatch.triage.history import History
from perfwatch.triage.loops import COUNTED_LOOP
from perfwatch.triage.memory import GUESSED
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
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
    "a loop that counts": SourceLine(file=TRAIN, line=77, text="total += score(one)", calls=("score",), loops=("for",)),
    "not read": None,
}
WAITS_FOR_A_CONDITION = SourceLine(file=TRAIN, line=77, text="ready = score()", calls=("score",), loops=("while",))


def computes(line: SourceLine | None, until: float, bytes_per_second: float = 0.0) -> History:
    """The first of three ranks, at full core, with changing stacks."""
    history = job(3)
    if line is not None:
        history.add(1.0, line)
    runs(history, FIRST, SCORES, STOPPED, until, bytes_per_second=bytes_per_second)
    uses(history, FIRST, 0.95, bytes_per_second, until)
    for rank in (1, 2):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, until)
    return history


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
