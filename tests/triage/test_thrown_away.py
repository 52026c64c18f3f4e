"""Batches that arrive and are not trained on: the loop throws them away, which looks like slow loading."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine, Stack, Thread
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training

FEEDER = 740
WAITS = (Frame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1275), Frame("train", TRAIN, 11))
FEEDS = (Frame("_feed", "/usr/lib/python3.12/multiprocessing/queues.py", 250),)
REJECTS = (Frame("train", TRAIN, 12),)
STEPS = [FORWARD, BACKWARD, OPTIMIZER]
CALLS = ("usable", "model", "loss.backward", "optimizer.step")


class Loading(Training):
    """It takes batches from a loader, and a thread of its own orders the next ones."""

    def __init__(self) -> None:
        super().__init__(card=False)
        self.add(SourceLine(file=TRAIN, line=11, text="for batch in loader:", loops=("for",), loop_calls=CALLS))
        self.taken = 0

    def takes(self, seconds: float, stacks: list[tuple[Frame, ...]], batches: int) -> "Loading":
        """Half a second after the other, so many batches a second."""
        for number in range(round(seconds / 0.5)):
            self.goes_on(0.5, [stacks[number % len(stacks)]], run_share=0.1)
            self.taken += round(batches / 2)
            self.add(_orders(self.taken), Stack(pid=PID, tid=FEEDER, frames=FEEDS, samples=1, span_seconds=0.1))
        return self


def _orders(switches: int) -> Thread:
    return Thread(
        pid=PID,
        tid=FEEDER,
        name="QueueFeederThre",
        state="S",
        cpu_seconds=0.1,
        run_seconds=0.1,
        run_delay_seconds=0.0,
        voluntary_switches=switches,
        read_calls=0,
        write_calls=0,
    )


def trained() -> Loading:
    """Half a minute of steps, with waits for data among them."""
    return Loading().takes(30.0, [WAITS, *STEPS], 20)


@pytest.mark.parametrize("counted", [True, False])
def test_a_loop_that_made_steps_and_takes_batches_without_any_throws_them_away(counted: bool) -> None:
    """That is said once no step came for the patience, and surer where they are counted."""
    job = trained()
    if counted:
        job.steps(200, *[0.1] * 20)
    job.takes(40.0, [WAITS, WAITS, WAITS, REJECTS], 40)
    if counted:
        job.steps(200, ago=40.0)
    assert job.verdict().cause != "skipping_steps"

    job.takes(40.0, [WAITS, WAITS, WAITS, REJECTS], 40)
    if counted:
        job.steps(200, ago=80.0)

    found = job.verdict()

    assert (found.state, found.cause) == ("slow", "skipping_steps")
    assert found.confidence == (0.95 if counted else 0.8)
    assert "dropped at train (train.py:12)" in found.summary


def test_another_loop_that_takes_batches_for_itself_throws_nothing_away() -> None:
    """After the training, in a function of its own: it is not the loop that made steps, be the model asked there as well."""
    moments = Frame("moments", TRAIN, 31)
    job = trained()
    job.add(SourceLine(file=TRAIN, line=31, text="for batch in loader:", loops=("for",), loop_calls=("batch.sum",)))
    job.takes(10.0, [(WAITS[0], moments), (FORWARD[0], moments)], 40)
    job.takes(80.0, [(WAITS[0], moments)] * 3 + [(Frame("moments", TRAIN, 32),)], 40)

    assert job.verdict().cause != "skipping_steps"


def test_a_loop_that_was_not_seen_to_train_is_told_by_its_text_and_less_surely() -> None:
    """A run that was resumed may skip what it has trained on before."""
    found = Loading().takes(60.0, [WAITS, WAITS, REJECTS], 400).verdict()

    assert (found.cause, found.confidence) == ("skipping_steps", 0.65)
    assert any("resumed" in one for one in found.next)


@pytest.mark.parametrize(("stacks", "batches"), [([WAITS] * 30 + [*STEPS, REJECTS], 40), ([WAITS], 0)])
def test_batches_that_are_trained_on_or_do_not_come_are_not_thrown_away(
    stacks: list[tuple[Frame, ...]], batches: int
) -> None:
    """Every other batch makes a step; or none has arrived, for the loader is slow or stands."""
    assert trained().takes(90.0, stacks, batches).verdict().cause != "skipping_steps"
