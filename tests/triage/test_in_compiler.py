"""A backward pass that is compiled when it first runs: the training thread stands in backward, torch's engine in the compiler."""

import pytest

from perfwatch.probes.readings import Frame, Stack
from perfwatch.triage.cards.accelerated import launching_share
from perfwatch.triage.shares.in_compiler import compiles
from tests.training import BACKWARD, ENGINE, FORWARD, PID, TORCH, Training

COMPILES = (
    Frame("codegen", f"{TORCH}/_inductor/graph.py", 2100),
    Frame("compile_fx_inner", f"{TORCH}/_inductor/compile_fx.py", 700),
)
HOOK = (Frame("scale", "/app/train.py", 70),)


@pytest.mark.parametrize(("engine", "busy"), [(COMPILES, True), (HOOK, False)])
def test_what_the_engine_compiles_is_compiled_and_launches_nothing(engine: tuple[Frame, ...], busy: bool) -> None:
    """A hook of the program's own runs in the same thread, and is no compiler."""
    job = Training().goes_on(10.0, [FORWARD, *[BACKWARD] * 19], load="idle_context", engine=1.0)
    for number in range(1, 20):
        job.history.add(number / 2, Stack(pid=PID, tid=ENGINE, frames=engine, samples=5, span_seconds=0.4))
    case = job.case()
    verdict = job.verdict()

    assert ((verdict.state, verdict.cause) == ("busy", "compiling")) is busy
    assert (launching_share(case, case.profile(case.ranks[0])) < 0.5) is busy


IMPORTS = (Frame("_find_and_load", "<frozen importlib._bootstrap>", 1360),)
ASKS_FOR_IT = (Frame("compile", f"{TORCH}/__init__.py", 2758),)
MAIN = (Frame("main", "/app/train.py", 31),)


@pytest.mark.parametrize(
    ("frames", "compiling"),
    [
        (IMPORTS + COMPILES + MAIN, True),  # what a kind of layer needs is imported when the first one is traced
        (COMPILES + IMPORTS + COMPILES + MAIN, True),
        (
            COMPILES + IMPORTS + ASKS_FOR_IT + MAIN,
            True,
        ),  # inductor registers its lowerings while torch.compile fetches it
        (COMPILES + IMPORTS + MAIN, False),  # torch._dynamo is imported by the first step of any optimizer
        (IMPORTS + MAIN, False),
    ],
)
def test_of_the_compiler_and_an_import_the_outer_one_tells_what_a_thread_is_at(
    frames: tuple[Frame, ...], compiling: bool
) -> None:
    """Innermost first."""
    assert compiles(Stack(pid=PID, tid=PID, frames=frames)) is compiling


def test_a_compiler_that_imports_for_its_work_is_not_starting() -> None:
    """Of a first compilation half the time goes into imports."""
    job = Training(card=False).goes_on(8.0, [IMPORTS + ASKS_FOR_IT + MAIN, IMPORTS + COMPILES + MAIN, COMPILES + MAIN])
    verdict = job.verdict()

    assert (verdict.state, verdict.cause) == ("busy", "compiling")
