"""What a training thread does besides training, and how sure it is that this is Python."""

import pytest

from perfwatch.triage.rules import serial_loading
from perfwatch.triage.shares.starving import for_training
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training

OWN = [(Frame("edit_distance", TRAIN, line), Frame("train", TRAIN, 18)) for line in (30, 31)]
WAITS = (Frame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1275),)


def mixed(torn: int, owned: int) -> Training:
    """Steps that are mostly the program's own work, which so many dumps found with the GIL and without."""
    job = Training(card=False).goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None)
    for number in range(owned + torn):
        torn_now = number * torn // (owned + torn) < (number + 1) * torn // (owned + torn)
        job.goes_on(1.0, OWN, owns_gil=not torn_now, samples=1).goes_on(0.5, OWN[:1], owns_gil=None)
    return job.goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None)


@pytest.mark.parametrize(("torn", "owned", "told"), [(0, 10, True), (1, 9, True), (5, 5, False), (9, 1, False)])
def test_one_dump_that_was_torn_does_not_hide_that_python_computes(torn: int, owned: int, told: bool) -> None:
    """Operations of torch are without the GIL in most dumps, not in one of ten."""
    found = serial_loading.judge(mixed(torn, owned).case())

    assert isinstance(found, Finding) is told


def test_healthy_training_in_functions_of_its_own_says_where() -> None:
    """Nobody knows whether that is the model."""
    verdict = mixed(5, 5).verdict()

    assert (verdict.cause, verdict.confidence) == ("cpu_training", 0.75)
    assert "at edit_distance (train.py:3" in verdict.summary


@pytest.mark.parametrize(
    ("waits_in", "passes_in", "expected"),
    [
        ("train", (BACKWARD, OPTIMIZER), True),
        ("importance", (BACKWARD, OPTIMIZER), False),  # after the training, in a loop of its own
        ("importance", (BACKWARD,), True),  # nobody saw which loop makes steps
    ],
)
def test_data_is_for_training_where_the_loop_that_makes_steps_waits_for_it(
    waits_in: str, passes_in: tuple[tuple[Frame, ...], ...], expected: bool
) -> None:
    """Another that gathers statistics may be as slow as its data."""
    job = (
        Training(card=False).goes_on(10.0, [FORWARD, *passes_in]).goes_on(20.0, [(*WAITS, Frame(waits_in, TRAIN, 44))])
    )
    case = job.case()

    assert for_training(case, case.ranks[0], case.profile(case.ranks[0], 15.0)) is expected


@pytest.mark.parametrize(("called", "expected"), [(("loss.backward",), False), (("loss.backward", "opt.step"), True)])
def test_a_loop_that_makes_gradients_and_by_its_text_no_step_does_not_train(
    called: tuple[str, ...], expected: bool
) -> None:
    """An estimate of the Fisher information."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=44, text="for x in loader:", loops=("for",), loop_calls=called))
    case = job.goes_on(20.0, [(*WAITS, Frame("importance", TRAIN, 44))]).case()

    assert for_training(case, case.ranks[0], case.profile(case.ranks[0])) is expected
