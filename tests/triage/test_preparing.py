"""What a program prepares in Python before its first step comes to an end; a loop in mid-training should have come to the next step."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TRAIN, Training

MERGES = [(Frame("merge", TRAIN, line), Frame("main", TRAIN, 70)) for line in (21, 22, 23, 24)]
IN_ROUNDS, ALONE = ("for", "for", "while"), ("while",)


def program(loops: tuple[str, ...]) -> Training:
    """Its lines of ``merge`` lie in these loops, innermost first."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=70, text="table = merge(words)", calls=("merge",)))
    job.add(*(SourceLine(file=TRAIN, line=line, text="pairs[a, b] += n", loops=loops) for line in (21, 22, 23, 24)))
    return job


def said(job: Training) -> tuple[str, str | None]:
    """State and cause, or what is suspected."""
    verdict = job.verdict()
    return verdict.state, verdict.suspect.cause if verdict.suspect else verdict.cause


def test_rounds_before_any_training_are_given_five_times_the_patience() -> None:
    """A vocabulary is merged until it is large enough: each round goes over all words."""
    job = program(IN_ROUNDS).goes_on(90.0, MERGES, owns_gil=True)
    late = (
        job.goes_on(230.0, MERGES, owns_gil=True).verdict() if said(job) == ("inconclusive", "endless_python") else None
    )

    assert late is not None
    assert (late.state, late.cause, late.confidence) == ("hung", "endless_python", 0.65)


@pytest.mark.parametrize("trained", [False, True])
def test_a_loop_that_only_waits_for_its_condition_is_given_the_patience(trained: bool) -> None:
    """Before the first step as after it."""
    job = program(ALONE)
    if trained:
        job.goes_on(10.0, [FORWARD, BACKWARD, OPTIMIZER])

    assert said(job.goes_on(90.0, MERGES, owns_gil=True)) == ("hung", "endless_python")


def test_rounds_in_mid_training_should_have_come_to_the_next_step() -> None:
    """It trained before."""
    job = program(IN_ROUNDS).goes_on(10.0, [FORWARD, BACKWARD, OPTIMIZER]).goes_on(90.0, MERGES, owns_gil=True)

    assert said(job) == ("hung", "endless_python")


BLOCKS = [(Frame("neighbours", TRAIN, line), Frame("main", TRAIN, 70)) for line in (31, 32, 33)]


@pytest.mark.parametrize(
    ("loops", "around", "owns_gil", "confidence"),
    [
        (("for",), (), False, 0.65),
        (("for",), ("batches", "loss.backward", "optimizer.step"), False, 0.65),  # the data of each step, perhaps
        (("while",), (), False, None),  # it may never end
        (("for",), (), True, None),  # Python, not native calls
    ],
)
def test_many_native_calls_before_any_training_are_one_long_computation(
    loops: tuple[str, ...], around: tuple[str, ...], owns_gil: bool, confidence: float | None
) -> None:
    """A graph of neighbours is built with numpy, a block of rows at a time."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=70, text="build(points)", loop_calls=around, loops=("for",) if around else ()))
    job.add(*(SourceLine(file=TRAIN, line=line, text="d += norm", loops=loops) for line in (31, 32, 33)))
    verdict = job.goes_on(20.0, BLOCKS, owns_gil=owns_gil).verdict()

    said = (verdict.state, verdict.cause, verdict.confidence)

    assert (said == ("busy", "computing_on_host", confidence)) is (confidence is not None)
