"""A loop around forward passes that is never left looks like an evaluation, and how long those take is what tells them apart."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training

MAIN, WRITE = Frame("train", TRAIN, 60), Frame("evaluate", TRAIN, 50)
Stacks = list[tuple[Frame, ...]]
STEPS: Stacks = [FORWARD, BACKWARD, OPTIMIZER]
WRITES: Stacks = [
    (FORWARD[0], Frame("write", TRAIN, 32), WRITE, MAIN),
    (Frame("write", TRAIN, 33), WRITE, MAIN),
    (Frame("sample", f"{TORCH}/distributions/categorical.py", 140), Frame("write", TRAIN, 34), WRITE, MAIN),
]
BEGINS = (Frame("write", TRAIN, 30), WRITE, MAIN)
CALLS = ("model.advance", "draw", "text.append")


def program(loops: tuple[str, ...] = ("while",), calls: tuple[str, ...] = CALLS) -> Training:
    """Lines 32 to 34 of ``write`` stand in a loop, line 30 before it, and it is called for one prompt after the other."""
    job = Training(card=False)
    for line in (32, 33, 34):
        job.add(SourceLine(file=TRAIN, line=line, text="", loops=loops, loop_calls=calls))
    job.add(
        SourceLine(file=TRAIN, line=30, text="token = begin(prompt)"),
        SourceLine(file=TRAIN, line=50, text="write(prompt)", loops=("for",)),
        SourceLine(file=TRAIN, line=60, text="evaluate(model)", loops=("while",)),
    )
    return job


def trained(job: Training, evaluations: int = 3) -> Training:
    """Half a minute of steps, with evaluations of three seconds among them."""
    for _ in range(evaluations):
        job.goes_on(9.0, STEPS).goes_on(3.0, [*WRITES, BEGINS])
    return job.goes_on(9.0, STEPS)


def told(job: Training) -> tuple[str, str | None, str | None]:
    """State, cause, and what is suspected."""
    verdict = job.verdict()
    return verdict.state, verdict.cause, verdict.suspect.cause if verdict.suspect else None


EVALUATES, SUSPECTED = ("busy", "evaluating", None), ("inconclusive", None, "endless_python")


def test_a_loop_that_was_left_within_seconds_before_and_is_not_left_for_minutes_is_endless() -> None:
    """First it is an evaluation, then that is doubted, then it is told with the line of the loop."""
    job = trained(program()).goes_on(60.0, WRITES, samples=10)
    assert told(job) == EVALUATES

    assert told(job.goes_on(90.0, WRITES, samples=10)) == SUSPECTED

    found = job.goes_on(160.0, WRITES, samples=10).verdict()
    assert (found.state, found.cause, found.confidence) == ("hung", "endless_python", 0.65)
    assert "its loop at write (train.py:" in found.summary


def test_the_first_evaluation_of_a_run_is_given_longer_and_only_suspected() -> None:
    """Nobody knows how long it takes."""
    job = trained(program(), evaluations=0).goes_on(290.0, WRITES, samples=10)
    assert told(job) == EVALUATES

    assert told(job.goes_on(60.0, WRITES, samples=10)) == SUSPECTED
    assert told(job.goes_on(300.0, WRITES, samples=10)) == SUSPECTED


def test_a_run_that_was_never_seen_to_train_is_only_suspected() -> None:
    """It may be there to answer."""
    assert told(program().goes_on(700.0, WRITES, samples=10)) == SUSPECTED


@pytest.mark.parametrize(
    ("loops", "calls", "stacks"),
    [
        (("for",), CALLS, WRITES),
        (("for", "while"), CALLS, WRITES),
        (("while",), ("next", *CALLS), WRITES),
        (("while",), ("queue.get", *CALLS), WRITES),
        (("while",), ("loss.backward", "optimizer.step", *CALLS), WRITES),
        (("while",), CALLS, [*WRITES * 12, BEGINS]),
    ],
)
def test_a_loop_that_ends_with_what_it_goes_through_or_is_left_is_an_evaluation(
    loops: tuple[str, ...], calls: tuple[str, ...], stacks: Stacks
) -> None:
    """A loader, an iterator, a queue, an optimizer; or many answers, each of which comes to its end."""
    assert told(trained(program(loops, calls)).goes_on(400.0, stacks, samples=10)) == EVALUATES


def test_few_samples_are_no_proof_that_a_loop_is_not_left() -> None:
    """It is left for a thousandth of the time, if the answers are long."""
    assert told(trained(program()).goes_on(400.0, WRITES, samples=2)) == SUSPECTED


def test_an_evaluation_that_lasts_far_longer_than_any_step_is_said_less_surely() -> None:
    """Its loop ends with the data, but do the data?"""
    job = trained(program(loops=("for",)).steps(20, *[0.5] * 20)).steps(60, *[0.5] * 20)
    for second in range(70):
        job.goes_on(10.0, WRITES).steps(60, ago=10.0 * (second + 1))

    found = job.verdict()

    assert (found.state, found.cause, found.confidence) == ("busy", "evaluating", 0.65)
    assert "no step for 12 min" in found.summary
