"""Who reads or writes all the time is at work, for as long as that lasts; a loop that waits for a condition may still hang."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch.triage.moving.loops import COUNTED_LOOP
from perfwatch_probes.readings import Frame, SourceLine, Wait
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    process,
    runs,
    stands,
    uses,
)

PATIENCE = 60.0
LATE = STOPPED + (COUNTED_LOOP + 1) * PATIENCE
WORKER, DATA = 300, "/app/data.py"
TOKENISES: tuple[Frames, ...] = tuple(
    (Frame("write_out", TRAIN, line), Frame("main", TRAIN, 60), MODULE) for line in (71, 72)
)
LOADER = TORCH + "utils/data/"
AWAITS_A_BATCH: Frames = (
    Frame("poll", LIB + "multiprocessing/connection.py", 257),
    Frame("get", LIB + "multiprocessing/queues.py", 113),
    Frame("_try_get_data", LOADER + "dataloader.py", 1200),
    Frame("__next__", LOADER + "dataloader.py", 700),
    Frame("main", TRAIN, 90),
    MODULE,
)
SKIPS: tuple[Frames, ...] = tuple(
    (
        Frame("__iter__", DATA, line),
        Frame("fetch", LOADER + "_utils/fetch.py", 33),
        Frame("_worker_loop", LOADER + "_utils/worker.py", 349),
    )
    for line in (20, 21, 22)
)
FIVE_SECONDS = Wait(call="poll", number=7, kind="poll", remaining_seconds=5.0)


def source(file: str, line: int, loop: str) -> SourceLine:
    """A line in a loop of this kind."""
    return SourceLine(file=file, line=line, text="for one in them:", loops=(loop,))


def writes_out(ranks: int, trained: bool, bytes_per_second: float, loop: str = "for") -> History:
    """The first rank turns in a loop of its own, while the others wait for it."""
    history = job(ranks, trained)
    for line in (71, 72):
        history.add(1.0, source(TRAIN, line, loop))
    runs(history, FIRST, TOKENISES, STOPPED, LATE, bytes_per_second=bytes_per_second)
    uses(history, FIRST, 0.95, bytes_per_second, LATE)
    for rank in range(1, ranks):
        stands(history, FIRST + rank, BARRIER, FOR_EVER, LATE)
    return history


def skips(bytes_per_second: float, loop: str = "for") -> History:
    """A loader's worker that has made no batch yet."""
    history = job(1, trained=False)
    history.add(0.5, msgspec.structs.replace(process(WORKER, FIRST, "python train.py"), name="pt_data_worker"))
    for line in (20, 21, 22):
        history.add(1.0, source(DATA, line, loop))
    stands(history, FIRST, AWAITS_A_BATCH, FIVE_SECONDS, LATE)
    runs(history, WORKER, SKIPS, STOPPED, LATE, bytes_per_second=bytes_per_second, name="pt_data_worker")
    return history


@pytest.mark.parametrize("ranks", [1, 2])
def test_predictions_that_are_written_out_after_training_are_work_for_as_long_as_it_takes(ranks: int) -> None:
    """In a `for` loop at 5 MB/s, between two epochs."""
    history = writes_out(ranks, trained=True, bytes_per_second=5e6)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
        assert "hung" not in {one.state for one in verdict.findings}
        assert (verdict.culprits[0].frame or "").startswith("write_out")


def test_a_worker_that_skips_through_a_stream_before_its_first_batch_is_at_work() -> None:
    """A run that goes on where it had stopped."""
    history = skips(bytes_per_second=2e7)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
        assert verdict.culprits[0].worker_pid == WORKER


@pytest.mark.parametrize(
    ("history", "cause"),
    [
        (writes_out(1, trained=True, bytes_per_second=5e6, loop="while"), "endless_python"),
        (writes_out(1, trained=True, bytes_per_second=0.0), "endless_python"),
        (skips(bytes_per_second=2e7, loop="while"), "stuck_worker"),
        (skips(bytes_per_second=0.0), "stuck_worker"),
    ],
)
def test_a_loop_that_waits_for_a_condition_or_moves_no_data_hangs_after_five_times_the_patience(
    history: History, cause: str
) -> None:
    """A log that is written in a loop without an end is no work."""
    verdict = judged(history, LATE)

    assert (verdict.state, verdict.cause) == ("hung", cause)


def test_preparation_in_memory_before_the_first_step_stays_preparation() -> None:
    """A vocabulary that takes six minutes: after five of them nothing has changed."""
    history = writes_out(1, trained=False, bytes_per_second=0.0)

    for verdict in (judged(history, STOPPED + PATIENCE), judged(history, LATE)):
        assert (verdict.state, verdict.cause) == ("busy", "starting")
