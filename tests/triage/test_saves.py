"""What counts as saves that come back, and what grows: told apart from programs that only look like it."""

from collections.abc import Callable

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.rules.steps import regressed
from perfwatch.triage.rules.writes import checkpointing, slow_checkpoint
from perfwatch.verdict import Finding, Level, Outcome
from perfwatch_probes.readings import FileGrowth, Frame, Wait
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training

STEP = (FORWARD, BACKWARD, OPTIMIZER)
SAVE = (Frame("save", f"{TORCH}/serialization.py", 900), Frame("keep", TRAIN, 30))
GATHER = (Frame("keep", TRAIN, 31),)
ACTIVATIONS = (*FORWARD[:1], Frame("checkpoint", "/app/util.py", 120), Frame("train", TRAIN, 12))
OWN = (Frame("ranked", "/app/history.py", 9), Frame("train", TRAIN, 15))


def found(job: Training, rule: Callable[[Case], Outcome] = slow_checkpoint) -> Finding | None:
    """What one rule says."""
    outcome = rule(job.case())
    return outcome if isinstance(outcome, Finding) else None


def test_saves_with_training_between_them_come_back() -> None:
    """Four seconds of each ten."""
    job = Training(card=False)
    for _ in range(3):
        job.goes_on(6, STEP).goes_on(4, [SAVE])

    assert found(job) is not None


@pytest.mark.parametrize(("grows_by", "writes"), [(180, False), (2**24, True)])
def test_a_line_in_a_log_is_no_checkpoint_being_written(grows_by: int, writes: bool) -> None:
    """A rank in a save that waits for the others in a collective writes nothing; its output may hold a sentence of ours."""
    job = Training(card=False).goes_on(6, STEP)
    for look in range(3):
        job.add(FileGrowth(pid=PID, fd=2, path="/job/log", size_bytes=1000 + grows_by * look, modified_ago_seconds=1.0))
        job.goes_on(6, [SAVE], run_share=0.0, wait=Wait(call="futex", number=202, kind="lock"))

    assert (found(job, checkpointing) is not None) is writes


@pytest.mark.parametrize("minutes_later", [False, True])
def test_one_checkpoint_of_two_files_is_one(minutes_later: bool) -> None:
    """The model, then what is copied to the host, then the optimizer's state: while it is written and afterwards."""
    job = Training(card=False).goes_on(20, STEP).goes_on(4, [SAVE]).goes_on(1, [GATHER]).goes_on(4, [SAVE])

    assert found(job.goes_on(25, STEP) if minutes_later else job) is None


def test_activation_checkpointing_is_no_save() -> None:
    """A function of the program's own that is called so calls the model again and again."""
    assert found(Training(card=False).goes_on(20, [ACTIVATIONS, BACKWARD, ACTIVATIONS, OPTIMIZER])) is None


@pytest.mark.parametrize(
    ("older", "newer", "line"),
    [
        ([*STEP, OWN], [*STEP, OWN, OWN, OWN], "ranked (history.py:9)"),
        ([*STEP, OWN, OWN, OWN], [*STEP, OWN, OWN], "train (train.py:12)"),
        (STEP, STEP, None),
    ],
)
def test_a_line_is_blamed_for_growth_where_its_share_grows(
    older: list[tuple[Frame, ...]], newer: list[tuple[Frame, ...]], line: str | None
) -> None:
    """A constant augmentation takes less and less of steps whose model takes longer, however much it takes: the model is named."""
    job = Training(card=False).goes_on(18, older).goes_on(18, newer)
    grown = found(job.steps(200, *(0.05 + 0.0008 * step for step in range(120))), regressed)

    assert grown is not None
    assert "longer and longer" in grown.summary
    assert [one.frame for one in grown.culprits] == ([line] if line else [])


def test_a_small_constant_line_is_not_blamed_for_growth_elsewhere() -> None:
    """A fifth of the time in work of the program's own, which the growth of the model left behind."""
    job = Training(card=False).goes_on(24, [FORWARD, BACKWARD, FORWARD, OPTIMIZER, OWN])
    grown = found(job.steps(200, *(0.05 + 0.0008 * step for step in range(120))), regressed)

    assert grown is not None
    assert grown.culprits == ()


def test_two_saves_with_a_long_while_between_them_cost_what_a_whole_period_holds_of_them() -> None:
    """Two seconds of each sixteen: twenty seconds hold two of them for a moment, and one is under way when first looked at."""
    job = Training(card=False).goes_on(2, [SAVE]).goes_on(14, STEP).goes_on(2, [SAVE])

    assert found(job) is None
    assert found(job.goes_on(1, STEP)) is None


@pytest.mark.parametrize(("long_steps", "told"), [((2.0,), False), ((8.0,), True), ((), True)])
def test_saves_cost_no_more_than_the_long_steps_do(long_steps: tuple[float, ...], told: bool) -> None:
    """Samples that are taken now and then hold more of the saves than there is; a save that belongs to each step shows in none."""
    job = Training(card=False)
    for _ in range(3):
        job.goes_on(3, STEP).goes_on(2, [SAVE])
        job.steps(200, *(0.1,) * 200, *long_steps)

    assert (found(job) is not None) == told


@pytest.mark.parametrize("name", ["dump", "ModelCheckpoint.on_step_end", "Trainer.save_state"])
def test_what_a_program_packs_itself_is_a_save_by_its_name(name: str) -> None:
    """Written through gzip: no library frame says that it is a checkpoint."""
    packs = (Frame("GzipFile.write", "/usr/lib/python3.11/gzip.py", 289), Frame(name, TRAIN, 43))
    job = Training(card=False)
    for _ in range(4):
        job.goes_on(3, STEP).goes_on(2, [packs])
    told = found(job)

    assert told is not None
    assert told.confidence == Level.HIGH
