"""What counts as output that a loop comes back to, and what a program writes once."""

import pytest

from perfwatch.triage.rules import writes
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training

STEP = (FORWARD, BACKWARD, OPTIMIZER)
PRINTS = (Frame("train", TRAIN, 40),)


def training() -> Training:
    """A job with a line that prints."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=40, text="    print(table)", calls=("print",)))
    return job


def found(job: Training) -> Finding | None:
    """What the rule says."""
    outcome = writes.slow_output(job.case())
    return outcome if isinstance(outcome, Finding) else None


def test_what_is_printed_in_every_step_is_slow_output() -> None:
    """Half of the samples, with training between them."""
    said = found(training().goes_on(15, [*STEP, PRINTS, PRINTS], writes=20))

    assert said is not None
    assert "train.py:40" in said.summary


INNER = Frame("Module._call_impl.<locals>.inner", f"{TORCH}/nn/modules/module.py", 1845)


@pytest.mark.parametrize(
    ("prints", "told"),
    [
        ((Frame("show", TRAIN, 40), INNER, *FORWARD), True),  # a hook
        ((Frame("__repr__", f"{TORCH}/_tensor.py", 564), Frame("show", TRAIN, 40), *BACKWARD), True),
        ((FORWARD[0], Frame("train", TRAIN, 40)), False),  # print(model(x))
    ],
)
def test_what_a_model_or_a_hook_prints_is_output_and_a_pass_in_a_line_that_prints_is_none(
    prints: tuple[Frame, ...], told: bool
) -> None:
    """It is the line that counts, not that it is called within a pass."""
    assert (found(training().goes_on(15, [*STEP, prints, prints], writes=20)) is not None) is told


@pytest.mark.parametrize(("beside", "told"), [((), True), (("file.write",), False)])
def test_what_is_printed_and_synced_is_output_however_its_function_is_called(
    beside: tuple[str, ...], told: bool
) -> None:
    """``dump_gradients`` prints a megabyte for people; beside other writes a sync is one of a save."""
    job, prints, syncs = training(), (Frame("dump_gradients", TRAIN, 40),), (Frame("dump_gradients", TRAIN, 41),)
    calls = ("os.fsync", "file.fileno")
    job.add(
        SourceLine(
            file=TRAIN, line=41, text="os.fsync(file.fileno())", calls=calls, loop_calls=("print", *calls, *beside)
        )
    )
    job.goes_on(15, [*STEP, prints, *(syncs,) * 5], writes=20)

    assert (found(job) is not None) is told
    assert isinstance(writes.slow_checkpoint(job.case()), Finding) is not told


def test_what_is_printed_once_at_the_end_is_not() -> None:
    """The same share of the samples in one piece: a table after the last step, that a slow terminal takes."""
    assert found(training().goes_on(9, STEP, writes=20).goes_on(6, [PRINTS], writes=20)) is None


def test_what_was_printed_once_before_the_first_step_is_not() -> None:
    """A description of the model."""
    assert found(training().goes_on(6, [PRINTS], writes=20).goes_on(9, STEP, writes=20)) is None


def test_a_write_that_takes_longer_than_any_before_is_no_part_of_each_step_yet() -> None:
    """The reader of a pipe may have gone: whether that write ends at all, nobody knows."""
    job = training().goes_on(9, [*STEP, *STEP, PRINTS], writes=20).goes_on(6, [PRINTS], writes=20)

    assert found(job) is None


@pytest.mark.parametrize(("call", "told"), [("writer.writerows", True), ("torch.save", False)])
def test_a_table_of_text_is_output_whatever_the_function_is_called_that_writes_it(call: str, told: bool) -> None:
    """``save`` of a logger writes all of its rows anew in each step."""
    job, saves = training(), (Frame("save", TRAIN, 42),)
    job.add(SourceLine(file=TRAIN, line=42, text=f"        {call}(rows, out)", calls=(call,)))
    job.goes_on(15, [*STEP, saves, saves], writes=20)

    assert (found(job) is not None) is told
    assert isinstance(writes.slow_checkpoint(job.case()), Finding) is not told
