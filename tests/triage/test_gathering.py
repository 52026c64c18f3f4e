"""A pass over the data for figures of it: batches come, and no step is owed."""

import pytest

from perfwatch_probes.readings import GATHERED, PERTURBED, Frame, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, TRAIN, Training, level

LOADER = f"{TORCH}/utils/data/dataloader.py"
TAKES = (
    Frame("__getitem__", TRAIN, 44),
    Frame("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    Frame("_SingleProcessDataLoaderIter._next_data", LOADER, 788),
    Frame("moments", TRAIN, 11),
)
SUMS = (Frame("moments", TRAIN, 12),)
GATHERS = ("batch.sum", "len")


@pytest.mark.parametrize(
    ("calls", "loops", "unnamed", "told"),
    [
        (GATHERS, ("for",), False, ("busy", "computing_on_host")),
        (("trainer.consume",), ("for",), False, ("slow", "serial_loading")),  # it may train, for all that its name says
        (GATHERS, ("for",), True, ("slow", "serial_loading")),  # actions["train"](batch)
        (GATHERS, (), False, ("slow", "serial_loading")),  # no loop is known: one batch at a time is asked for
    ],
)
def test_a_loop_that_only_looks_at_its_batches_owes_no_step(
    calls: tuple[str, ...], loops: tuple[str, ...], unnamed: bool, told: tuple[str, str]
) -> None:
    """The mean of a feature takes minutes, and no worker makes training faster meanwhile."""
    job = Training(card=False)
    for line in (11, 12):
        job.add(SourceLine(file=TRAIN, line=line, text="", loop_calls=calls, loops=loops, calls_unnamed=unnamed))

    verdict = job.goes_on(20.0, [TAKES] * 9 + [SUMS]).verdict()

    assert (verdict.state, verdict.cause) == told


def test_where_a_model_is_met_as_well_batches_are_for_training() -> None:
    """The loop's text may be that of another one that has the same line."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=11, text="", loop_calls=GATHERS, loops=("for",)))

    verdict = job.goes_on(20.0, [TAKES] * 9 + [FORWARD]).verdict()

    assert (verdict.state, verdict.cause) == ("slow", "serial_loading")


@pytest.mark.parametrize(
    ("stacks", "parameters", "told"),
    [
        ([FORWARD, BACKWARD], GATHERED, ("busy", "computing_on_host", "medium")),
        ([FORWARD, BACKWARD], "", ("healthy", "cpu_training", "medium")),  # its own code may make the updates
        ([FORWARD, BACKWARD, OPTIMIZER], GATHERED, ("healthy", "cpu_training", "certain")),
    ],
)
def test_backward_passes_whose_gradients_are_only_added_up_train_nothing(
    stacks: list[tuple[Frame, ...]], parameters: str, told: tuple[str, str, str]
) -> None:
    """The Fisher information after a task."""
    job = Training(card=False)
    for line in (12, 13, 14):
        job.add(SourceLine(file=TRAIN, line=line, text="", loops=("for",), parameters=parameters))

    verdict = job.goes_on(20.0, stacks).verdict()

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == told


@pytest.mark.parametrize(
    ("parameters", "told"),
    [(PERTURBED, ("healthy", "cpu_training", "medium")), ("", ("busy", "evaluating", "high"))],
)
def test_forward_passes_alone_are_no_evaluation_where_the_loop_tries_parameters_out(
    parameters: str, told: tuple[str, str, str]
) -> None:
    """Evolution strategies train so."""
    job = Training(card=False)
    scores = Frame("evolve", TRAIN, 30)
    job.add(SourceLine(file=TRAIN, line=30, text="", loops=("for", "for"), parameters=parameters))
    decorated = (*FORWARD, Frame("decorate_context", f"{TORCH}/utils/_contextlib.py", 124), scores)
    job.add(SourceLine(file=TRAIN, line=12, text="model(x)", calls=("model",)))

    layers = [(Frame("forward", f"{TORCH}/nn/modules/{name}.py", 9), *decorated) for name in ("conv", "norm", "act")]
    verdict = job.goes_on(20.0, [decorated, *layers]).verdict()

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == told
