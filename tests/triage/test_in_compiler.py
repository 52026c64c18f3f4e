"""A backward pass that is compiled when it first runs: the training thread stands in backward, torch's engine in the compiler."""

import pytest

from perfwatch.probes.readings import Frame, Stack
from perfwatch.triage.cards.accelerated import launching_share
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
