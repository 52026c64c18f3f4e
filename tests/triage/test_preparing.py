"""What a program prepares in Python before its first step comes to an end; a loop in mid-training should have come to the next step."""

import pytest

from perfwatch.probes.readings import Frame, SourceLine
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
