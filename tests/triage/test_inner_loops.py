"""A loop inside of a forward pass or of the fetch of a batch looks like training: told by what is never seen beside it."""

import pytest

from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.triage.history import History
from perfwatch_probes.readings import Frame, SourceLine, Stack, Thread
from tests.triage.rank_looks import BEGAN, FIRST, MODULE, STEP, STOPPED, TORCH, TRAIN, Frames, job, judged, looks, runs

PATIENCE = 60.0
TOO_LONG = 5.0  # times the patience, which a loop that may come to its end is given
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
CLUSTERS: tuple[Frames, ...] = tuple(
    (Frame("kmeans", MODEL, line), Frame("main", TRAIN, 70), MODULE) for line in (61, 62)
)
UPDATES: Frames = (Frame("step", TRAIN, 12), MODULE)
SEARCHED: tuple[Frames, ...] = tuple(
    (computed, Frame("Descent.step", "/app/descent.py", line), *UPDATES)
    for line in (21, 22, 23)
    for computed in (CALL, Frame("grad", TORCH + "autograd/__init__.py", 503))
)
LIBRARY = "/usr/lib/python3.11/site-packages/graphs/sampling.py"
SAMPLES: tuple[Frames, ...] = tuple(
    (
        Frame("isin", LIBRARY.replace("sampling", "sets"), 9),
        Frame("negatives", LIBRARY, line),
        Frame("step", TRAIN, 10),
        MODULE,
    )
    for line in (64, 65, 68)
)
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
    ("lines", "where", "called", "counted"),
    [(ROUTES, "forward", "forward pass", False), (SEARCHES, "__getitem__", "fetch of a batch", True)],
)
def test_a_loop_that_is_never_left_is_a_hang_once_the_patience_is_over(
    lines: tuple[Frames, ...], where: str, called: str, counted: bool
) -> None:
    """All samples of a minute are of one ``while`` loop of one forward pass, or of one fetch: no step will come."""
    late = STOPPED + PATIENCE
    verdict = judged(turns(lines, late + 5, counted=counted), late + 3)
    assert (verdict.state, verdict.cause) == ("hung", "endless_python"), verdict.summary
    assert called in verdict.summary
    assert where in (verdict.culprits[0].frame or "")


def test_slow_items_of_a_batch_are_no_hang_where_nobody_counts_steps() -> None:
    """A tokenizer in plain Python, item after item below the same line of the loader: a step of milliseconds is hardly ever seen."""
    assert judged(turns(SEARCHES, STOPPED + 2 * PATIENCE + 2), STOPPED + 2 * PATIENCE).state != "hung"


@pytest.mark.parametrize(
    ("before", "asks", "state"),
    [(2.0, "closure", "hung"), (0.0, "closure", "inconclusive"), (2.0, "torch.autograd.grad", "healthy")],
)
def test_an_optimizer_of_the_programs_own_may_search_for_ever(before: float, asks: str, state: str) -> None:
    """A line search that meets no number, known by the line that asks for the update and by how soon it came back before.

    One whose loop asks for gradients trains in there, and one that nobody saw come back may be meant to: neither is a hang.
    """
    began, late = STOPPED + 5, STOPPED + 5 + TOO_LONG * PATIENCE + 12.0
    history = turns((), STOPPED)
    history.add(0.0, SourceLine(file=TRAIN, line=12, text="opt.step(loss)", calls=("opt.step",), loops=("for",)))
    for frames in SEARCHED:
        line = SourceLine(
            file=frames[1].file, line=frames[1].line, text="x = f(x)", loops=("while",), loop_calls=(asks,)
        )
        history.add(0.0, line)
    runs(history, FIRST, SEARCHED, STOPPED, STOPPED + before)
    runs(history, FIRST, STEP, STOPPED + before, began)
    runs(history, FIRST, SEARCHED, began, late + 5)
    verdict = judged(history, late + 3)

    assert verdict.state == state, verdict.summary
    assert (verdict.suspect is not None) == (state == "inconclusive")
    assert state != "hung" or (verdict.culprits[0].frame or "").startswith("step (descent.py")


def test_a_loop_of_a_library_is_long_work_for_five_times_the_patience() -> None:
    """Below one line of the program, which never changes: no single native call, and no hang before it has lasted so long."""
    late = STOPPED + TOO_LONG * PATIENCE + 12.0
    history = turns((), STOPPED)
    history.add(0.0, SourceLine(file=LIBRARY, line=68, text="mask = isin(found, edges)", loops=("while",)))
    runs(history, FIRST, SAMPLES, STOPPED, late + 5)
    before, then = judged(history, STOPPED + PATIENCE), judged(history, late + 3)

    assert before.state in ("busy", "inconclusive"), before.summary
    assert before.confidence < CONFIDENT
    assert (then.state, then.cause) == ("hung", "endless_python"), then.summary
    assert (then.culprits[0].frame or "").startswith("step (train.py:10)")
    assert "negatives (sampling.py:68)" in then.summary


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
    history.add(STOPPED + 60.2, SourceLine(file=MODEL, line=ANOTHER_LAYER[0].line, text="return self.out(x)"))
    runs(history, FIRST, ROUTES, STOPPED + 60.2, STOPPED + 70)
    verdict = judged(history, STOPPED + PATIENCE + 8)
    assert (verdict.state, verdict.cause) == ("busy", "evaluating"), verdict.summary


def test_a_line_that_was_not_read_yet_may_be_in_the_loop_for_a_while() -> None:
    """Until it is read nobody calls it an evaluation, nor, without its text, a hang."""
    history = turns(ROUTES, STOPPED + 20)
    history.add(STOPPED + 20.1, Stack(pid=FIRST, tid=FIRST, frames=ANOTHER_LAYER))
    runs(history, FIRST, ROUTES, STOPPED + 20.2, STOPPED + PATIENCE + 8)
    soon = judged(history, STOPPED + 24)
    assert (soon.state, soon.suspect and soon.suspect.cause) == ("inconclusive", "endless_python"), soon.summary
    assert judged(history, STOPPED + PATIENCE + 3).state != "hung"


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


def test_a_fetch_that_reads_data_all_the_time_is_at_work() -> None:
    """It fills a shuffle buffer, say, or goes on to where the run was left: that has an end."""
    late = STOPPED + PATIENCE + 3
    history = turns(SEARCHES, late + 5)
    for at in looks(STOPPED, late + 5):
        done = int((at - STOPPED) * 20e6)
        history.add(at + 0.001, Thread(pid=FIRST, tid=FIRST, name="python", state="R", cpu_seconds=5.0 + at - STOPPED, read_chars=done,
                                       run_seconds=5.0 + at - STOPPED, voluntary_switches=int(at * 20), ran_ago_seconds=0.01))  # fmt: skip
    assert judged(history, late).state != "hung"


def test_a_generator_that_hands_out_batches_is_in_many_fetches() -> None:
    """Its frames around the loop are the same in each of them."""
    late = STOPPED + PATIENCE + 3
    history = job(1, trained=False)
    for frames in SEARCHES:
        history.add(0.0, SourceLine(file=PAIRS, line=frames[0].line, text="yield x", loops=("while",), hands_out=True))
    runs(history, FIRST, STEP, BEGAN, STOPPED)
    runs(history, FIRST, SEARCHES, STOPPED, late + 5)
    assert judged(history, late).state != "hung"


def test_what_nobody_looked_at_meanwhile_proves_nothing() -> None:
    """Two looks of some seconds, a minute apart: an evaluation whose passes take seconds."""
    history = turns(ROUTES, STOPPED + 5, counted=True)
    runs(history, FIRST, ROUTES, STOPPED + PATIENCE, STOPPED + PATIENCE + 5)
    assert judged(history, STOPPED + PATIENCE + 5).state != "hung"


@pytest.mark.parametrize(("calls", "state"), [(("f",), "busy"), (("f", "print"), "hung")])
def test_a_line_that_the_thread_writes_shows_that_it_came_out(calls: tuple[str, ...], state: str) -> None:
    """A solver whose passes take 20 s, and a line for each step, which no sample has hit; unless the loop itself writes."""
    late = STOPPED + PATIENCE + 3
    history = job(1, trained=False)
    for frames in ROUTES:
        history.add(
            0.0, SourceLine(file=MODEL, line=frames[0].line, text="x = f(x)", loops=("while",), loop_calls=calls)
        )
    runs(history, FIRST, STEP, BEGAN, STOPPED)
    runs(history, FIRST, ROUTES, STOPPED, late + 5, calls_per_second=0.05)
    assert judged(history, late).state == state


def test_a_torn_stack_is_no_way_out() -> None:
    """One that does not reach down to where the thread began."""
    late = STOPPED + PATIENCE + 3
    history = turns(ROUTES, late + 5)
    for at in (STOPPED + 25.03, STOPPED + 50.03, late - 0.01):
        history.add(at, Stack(pid=FIRST, tid=FIRST, frames=ROUTES[0][:1]))
    assert judged(history, late).state == "hung"


@pytest.mark.parametrize(("patiences", "state"), [(1.1, "inconclusive"), (TOO_LONG + 0.5, "hung")])
def test_a_loop_of_torch_operations_gets_five_times_the_patience(patiences: float, state: str) -> None:
    """A clustering, a simulation: it may converge yet, and is suspected until then."""
    late = STOPPED + patiences * PATIENCE
    history = turns(CLUSTERS, late + 2)
    for at in looks(STOPPED, late + 2):
        history.add(at + 0.001, Stack(pid=FIRST, tid=FIRST, frames=CLUSTERS[0], owns_gil=False))
    verdict = judged(history, late)
    assert verdict.state == state, verdict.summary
    assert "endless_python" in (verdict.cause, verdict.suspect.cause if verdict.suspect else None)


@pytest.mark.parametrize(("patiences", "surely"), [(2.0, True), (TOO_LONG + 1.0, False)])
def test_passes_within_a_loop_that_waits_for_a_condition_are_an_evaluation_for_a_while(
    patiences: float, surely: bool
) -> None:
    """Samples are drawn until enough of them are good: which may never be."""
    late = STOPPED + patiences * PATIENCE
    history = job(1)
    history.add(0.0, SourceLine(file=TRAIN, line=40, text="out = model(x)", loops=("while",)))
    layers = [
        (Frame("forward", TORCH + "nn/modules/linear.py", line), Frame("collect", TRAIN, 40), MODULE) for line in (1, 2)
    ]
    runs(history, FIRST, layers, STOPPED, late + 1)
    verdict = judged(history, late)
    assert (verdict.state, verdict.cause) == ("busy", "evaluating")
    assert (verdict.confidence >= CONFIDENT) is surely


@pytest.mark.parametrize(
    ("counted", "patiences", "state"),
    [(False, 1.1, "inconclusive"), (False, TOO_LONG + 0.5, "hung"), (True, 1.1, "hung")],
)
def test_who_computes_there_gets_five_times_the_patience_where_nobody_knows_how_long_it_takes(
    counted: bool, patiences: float, state: str
) -> None:
    """A solver in the model may take minutes for each pass; of one that took a quarter of a second, steps and all, that is known."""
    late = STOPPED + patiences * PATIENCE
    history = turns(ROUTES, late + 2, counted=counted)
    for at in looks(STOPPED, late + 2):
        history.add(at + 0.001, Stack(pid=FIRST, tid=FIRST, frames=ROUTES[0], owns_gil=False))
    assert judged(history, late).state == state


EPOCHS = (Frame("endless", TRAIN, 50), Frame("step", TRAIN, 10), MODULE)
FILTERS = (Frame("__iter__", PAIRS, 21), *IN_FETCH[:3], *EPOCHS)
STARTS_LOADER = (Frame("_get_iterator", TORCH + "utils/data/dataloader.py", 430), *EPOCHS)
FILTERED: tuple[Frames, ...] = (*[FILTERS] * 9, STARTS_LOADER)
AWAITED: tuple[Frames, ...] = (
    *[(Frame("_try_get_data", TORCH + "utils/data/dataloader.py", 1275), *EPOCHS)] * 9,
    STARTS_LOADER,
)


@pytest.mark.parametrize(
    ("turn", "loops", "seconds", "state", "told"),
    [
        (FILTERED, ("for", "while"), 20.0, "inconclusive", True),
        (FILTERED, ("for", "while"), PATIENCE + 5.0, "hung", True),
        (AWAITED, ("for", "while"), PATIENCE + 5.0, "inconclusive", False),  # its workers take long to start
        ((*FILTERED, STEP[0]), ("for", "while"), PATIENCE + 5.0, "slow", False),  # now and then a batch passes
        (FILTERED, ("for", "for"), 20.0, "slow", False),  # after so many epochs it ends
        ((FILTERS,), ("for", "while"), 20.0, "inconclusive", False),  # one epoch may be long
    ],
)
def test_a_loader_that_is_started_again_and_again_and_gives_no_batch_is_a_hang(
    turn: tuple[Frames, ...], loops: tuple[str, ...], seconds: float, state: str, told: bool
) -> None:
    """A filter that rejects every sample looks like slow loading; it is suspected with a countdown until then."""
    history = job(1, trained=False)
    history.add(0.0, SourceLine(file=TRAIN, line=50, text="for batch in loader:", loops=loops, hands_out=True))
    history.add(0.0, SourceLine(file=PAIRS, line=21, text="x = read()", loops=("for",), hands_out=True))
    runs(history, FIRST, STEP, BEGAN, STOPPED)
    runs(history, FIRST, turn, STOPPED, STOPPED + seconds)
    verdict = judged(history, STOPPED + seconds)

    suspect = verdict.suspect.cause if verdict.suspect is not None else None
    assert verdict.state == state
    assert ("endless_python" in (verdict.cause, suspect)) is told
