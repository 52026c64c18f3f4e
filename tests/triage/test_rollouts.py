"""Reinforcement learning makes its experience in an environment: that is no loading of data, and where it takes most of the time, busy."""

import pytest

from perfwatch.triage.rules import evaluating, serial_loading
from perfwatch.triage.shares.rollouts import in_environment
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TRAIN, Training

WORLD = "/app/harbour.py"
MOVES = (Frame("Harbour.collisions", WORLD, 31), Frame("Harbour.step", WORLD, 40), Frame("main", TRAIN, 52))
IN_A_LIBRARY = (
    Frame("collisions", WORLD, 31),
    Frame("step", "/home/user/venv/lib/python3.12/site-packages/gymnasium/wrappers/common.py", 125),
    Frame("main", TRAIN, 52),
)
STEP = (FORWARD, BACKWARD, OPTIMIZER)
GYM = "obs, reward, terminated, truncated, info = harbour.step(action)"


def learns(text: str, *calls: str, steps: tuple[Frame, ...] = MOVES, times: int = 2) -> Training:
    """A loop that spends ``times`` times as long below its line 52 as in each part of a training step."""
    job = Training(card=False)
    job.add(
        SourceLine(file=TRAIN, line=52, text=text, calls=calls, loops=("for",)),
        SourceLine(file=WORLD, line=31, text="near = [b for b in self.boats if b.at(x)]", loops=("for",)),
    )
    return job.goes_on(20.0, [*STEP, *[steps] * times])


def told(outcome: object) -> str | None:
    """The state that a rule told, or None."""
    return outcome.state if isinstance(outcome, Finding) else None


@pytest.mark.parametrize(
    ("text", "call", "steps"),
    [
        (GYM, "harbour.step", MOVES),
        ("answers.append(env.step(action))", "env.step", MOVES),
        ("s, r, done = self.world.step(a)", "self.world.step", MOVES),
        ("out = model_env.run(action)", "model_env.run", IN_A_LIBRARY),
    ],
)
def test_an_environment_that_takes_most_of_the_time_makes_experience(
    text: str, call: str, steps: tuple[Frame, ...]
) -> None:
    """By how it answers, by what it is called, or by the library that it stands below; and nobody advises workers."""
    case = learns(text, call, steps=steps, times=5).case()

    assert told(serial_loading.judge(case)) is None
    assert told(evaluating.judge(case)) == "busy"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("batch = bags.step(index)", "bags.step"),
        ("a, b = pairs.step(i)", "pairs.step"),
        ("inventory.step()", "inventory.step"),
    ],
)
def test_a_function_that_is_merely_called_step_makes_data(text: str, call: str) -> None:
    """No three names take its answer, and its owner is called otherwise."""
    case = learns(text, call, times=5).case()

    assert told(serial_loading.judge(case)) == "slow"
    assert told(evaluating.judge(case)) is None


def test_a_step_of_a_trainer_is_no_environment_whatever_it_answers() -> None:
    """Three figures come from it: below it lies the training itself."""
    job = learns("loss, accuracy, seen = trainer.step(batch)", "trainer.step")
    job.goes_on(1.0, [(*BACKWARD[:1], *MOVES[1:]), MOVES])
    seen = job.case().profile(job.case().ranks[0])

    assert seen.share_where(in_environment(job.history, seen)) == 0.0


def test_training_that_steps_an_environment_now_and_then_goes_on() -> None:
    """A third of the time: it is neither loading nor collecting."""
    case = learns(GYM, "harbour.step", times=2).case()

    assert told(serial_loading.judge(case)) is None
    assert told(evaluating.judge(case)) is None


@pytest.mark.parametrize(
    ("around", "state"), [(("harbour.step", "stack"), None), (("harbour.step", "loss.backward"), "slow")]
)
def test_the_loop_around_the_environment_is_no_loading_either(around: tuple[str, ...], state: str | None) -> None:
    """It acts, and keeps what came of it; a loop that goes backward as well may make its batches there."""
    keeps = (Frame("main.<locals>.<listcomp>", TRAIN, 55), Frame("main", TRAIN, 55))
    job = learns(GYM, "harbour.step", times=0)
    job.add(SourceLine(file=TRAIN, line=55, text="kept = [torch.tensor(o) for o in seen]", loop_calls=around))

    assert told(serial_loading.judge(job.goes_on(40.0, [*STEP, MOVES, keeps, keeps, keeps]).case())) == state
