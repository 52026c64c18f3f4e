"""Copies of the model in memory, as those make who keep its best weights, are told where they take a good part of the time."""

import msgspec

from perfwatch_probes.readings import Reading, SourceLine, Stack
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASE = RECORDINGS / "slow_checkpoint" / "fires" / "copies_of_the_best_weights"
FILE = "/home/user/train/c11.py"
KEEPS = "self.model = {name: weight.clone() for name, weight in model.state_dict().items()}"


def cloned(reading: Reading) -> Reading:
    """The same program, which clones what state_dict() gives: all of that is at one line, without a frame of torch's."""
    if not isinstance(reading, Stack) or not any(frame.function == "deepcopy" for frame in reading.frames):
        return reading
    keeps = next(number for number, frame in enumerate(reading.frames) if frame.function == "BestKeeper.update")
    return msgspec.structs.replace(reading, frames=reading.frames[keeps:])


def test_a_deep_copy_of_the_model_in_each_step_is_told_with_its_line() -> None:
    """Nine tenths of the time; nothing of it is training."""
    verdict = retold(CASE)

    assert verdict.summary.startswith(
        "copies of the model in memory take 90% of the time: at least 11 copies in 7.3 s, at update"
    )
    assert verdict.owner == "user_code"


def test_clones_of_its_state_are_told_the_same_way() -> None:
    """By the line alone: it asks for the state and clones it."""
    line = SourceLine(file=FILE, line=37, text=KEEPS, calls=("weight.clone", "model.state_dict"))

    assert retold(CASE, cloned, line).summary.startswith("copies of the model in memory take")
