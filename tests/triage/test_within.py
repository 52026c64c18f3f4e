"""A loop inside of a forward pass or of the fetch of a batch looks like training: told by what is never seen beside it."""

import pytest

from perfwatch.probes.readings import Frame, SourceLine, Stack
from perfwatch.triage.history import History
from tests.triage.rank_looks import BEGAN, FIRST, MODULE, STEP, STOPPED, TORCH, TRAIN, Frames, job, judged, runs

PATIENCE = 60.0
MODEL, PAIRS = "/app/model.py", "/app/pairs.py"
CALL = Frame("_call_impl", TORCH + "nn/modules/module.py", 1784)
IN_FORWARD: Frames = (CALL, Frame("step", TRAIN, 11), MODULE)
IN_FETCH: Frames = (
    Frame("fetch", TORCH + "utils/data/_utils/fetch.py", 52),
    Frame("_next_data", TORCH + "utils/data/dataloader.py", 789),
    Frame("__next__", TORCH + "utils/data/dataloader.py", 733),
    Frame("step", TRAIN, 10),
    MODULE,
)
ROUTES: tuple[Frames, ...] = tuple((Frame("forward", MODEL, line), *IN_FORWARD) for line in (31, 32, 33))
SEARCHES: tuple[Frames, ...] = tuple((Frame("__getitem__", PAIRS, line), *IN_FETCH) for line in (11, 12))
ANOTHER_LAYER: Frames = (Frame("forward", MODEL, 20), *IN_FORWARD)


def turns(lines: tuple[Frames, ...], until: float, loop: str = "while", counted: bool = False) -> History:
    """A training that turns from a moment on at these lines, which stand in a loop of this kind."""
    history = job(1, trained=counted)
    for frames in lines:
        loops = (loop,) if loop else ()
        history.add(0.0, SourceLine(file=frames[0].file, line=frames[0].line, text="x = f(x)", loops=loops))
    if not counted:
        runs(history, FIRST, STEP, BEGAN, STOPPED)
    runs(history, FIRST, lines, STOPPED, until)
    return history


@pytest.mark.parametrize(
    ("lines", "where", "called"), [(ROUTES, "forward", "forward pass"), (SEARCHES, "__getitem__", "fetch of a batch")]
)
def test_a_loop_that_is_never_left_is_a_hang_once_the_patience_is_over(
    lines: tuple[Frames, ...], where: str, called: str
) -> None:
    """All samples of a minute are of one ``while`` loop of one forward pass, or of one fetch: no step will come."""
    late = STOPPED + PATIENCE
    verdict = judged(turns(lines, late + 5), late + 3)
    assert (verdict.state, verdict.cause) == ("hung", "endless_python"), verdict.summary
    assert called in verdict.summary
    assert where in (verdict.culprits[0].frame or "")


@pytest.mark.parametrize("lines", [ROUTES, SEARCHES])
def test_until_then_it_is_neither_called_healthy_nor_an_evaluation(lines: tuple[Frames, ...]) -> None:
    """Nobody knows yet whether the loop will end, and it is said for how long it may still last."""
    verdict = judged(turns(lines, STOPPED + 30), STOPPED + 20)
    assert verdict.state == "inconclusive", verdict.summary
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "endless_python"


def test_counted_steps_make_it_surer() -> None:
    """The agent's count stands still meanwhile."""
    late = STOPPED + PATIENCE + 3
    with_steps = judged(turns(ROUTES, late + 5, counted=True), late)
    assert (with_steps.state, with_steps.cause) == ("hung", "endless_python"), with_steps.summary
    assert with_steps.confidence > judged(turns(ROUTES, late + 5), late).confidence


def test_one_look_at_another_layer_shows_that_the_loop_ends() -> None:
    """A model that decodes word by word is left now and then, however long each pass takes: an evaluation."""
    history = turns(ROUTES, STOPPED + 60)
    history.add(STOPPED + 60.1, Stack(pid=FIRST, tid=FIRST, frames=ANOTHER_LAYER))
    runs(history, FIRST, ROUTES, STOPPED + 60.2, STOPPED + 70)
    verdict = judged(history, STOPPED + PATIENCE + 8)
    assert (verdict.state, verdict.cause) == ("busy", "evaluating"), verdict.summary


@pytest.mark.parametrize("loop", ["for", ""])
def test_a_loop_that_comes_to_its_end_is_no_hang(loop: str) -> None:
    """A ``for`` loop over the layers, or none at all: long passes of a large model."""
    verdict = judged(turns(ROUTES, STOPPED + PATIENCE + 8, loop), STOPPED + PATIENCE + 3)
    assert verdict.state != "hung", verdict.summary


def test_what_took_as_long_before_and_came_out_gets_more_patience() -> None:
    """A solver in the model whose passes take most of a minute each."""
    history = turns(ROUTES, STOPPED + 50)
    runs(history, FIRST, STEP, STOPPED + 50, STOPPED + 55)
    runs(history, FIRST, ROUTES, STOPPED + 55, STOPPED + 200)
    assert judged(history, STOPPED + 55 + PATIENCE + 5).state != "hung"
