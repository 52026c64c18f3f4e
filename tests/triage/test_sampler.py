"""A sampler of the program's own, which a loader asks for the next batch, may never give one: that is no training."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine
from tests.triage.rank_looks import FIRST, LIB, MODULE, STOPPED, TORCH, Frames, job, judged, runs

LOADER = TORCH + "utils/data/dataloader.py"
BUCKETS = "/app/buckets.py"
ASKS = (
    Frame("_next_index", LOADER, 715),
    Frame("_try_put_index", LOADER, 1539),
    Frame("_next_data", LOADER, 1529),
    Frame("__next__", LOADER, 740),
    Frame("fit", "/app/train.py", 20),
    MODULE,
)
FILLS: tuple[Frames, ...] = tuple((Frame("__iter__", BUCKETS, line), *ASKS) for line in (33, 34, 35))
DRAWS: Frames = (Frame("randrange", LIB + "random.py", 312), *FILLS[0])
PICKS: tuple[Frames, ...] = tuple(
    (Frame("__iter__", TORCH + "utils/data/sampler.py", line), *ASKS) for line in (160, 165)
)


@pytest.mark.parametrize(
    ("loop", "seconds", "state"), [("while", 30, "inconclusive"), ("while", 66, "hung"), ("for", 66, "inconclusive")]
)
def test_a_sampler_that_turns_until_a_condition_comes_true_is_a_hang_after_the_patience(
    loop: str, seconds: int, state: str
) -> None:
    """Below the loader's frames, which otherwise mean that batches come; one that goes through something has an end."""
    history = job(1)
    for line in (33, 34, 35):
        history.add(1.0, SourceLine(file=BUCKETS, line=line, text="", loops=(loop,)))
    runs(history, FIRST, (*FILLS, DRAWS), STOPPED, STOPPED + seconds)
    verdict = judged(history, STOPPED + seconds)

    assert verdict.state == state
    if state == "hung":
        assert verdict.cause == "endless_python"
        assert "buckets.py" in (verdict.culprits[0].frame or "")


def test_a_sampler_of_torch_is_training() -> None:
    """It has an end, however long it takes."""
    history = job(1)
    runs(history, FIRST, PICKS, STOPPED, STOPPED + 66)

    assert judged(history, STOPPED + 66).cause != "endless_python"


def test_a_job_in_a_sampler_of_its_own_is_not_called_healthy_where_nobody_counts_its_steps() -> None:
    """Attached to while it draws: the frames of the loader around it are no steps."""
    history = job(1, trained=False)
    for line in (33, 34, 35):
        history.add(0.0, SourceLine(file=BUCKETS, line=line, text="", loops=("while",)))
    runs(history, FIRST, (*FILLS, DRAWS), 0.0, 20.0)
    verdict = judged(history, 20.0)

    assert verdict.state == "inconclusive", verdict.summary
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "endless_python"
