"""torch.compile: what a thread is compiling for, and if it is the first time."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, SourceLine, Stack, Thread
from tests.training import BACKWARD, ENGINE, FORWARD, OPTIMIZER, PID, TORCH, Training, level

COMPILES = (
    Frame("codegen", f"{TORCH}/_inductor/graph.py", 2100),
    Frame("compile_fx_inner", f"{TORCH}/_inductor/compile_fx.py", 700),
)
IN_FORWARD = (*COMPILES, Frame("forward", f"{TORCH}/_dynamo/eval_frame.py", 700), *FORWARD[1:])
TRAINS = ("model", "loss.backward", "opt.step")
HOOK = (Frame("scale", "/app/train.py", 70),)


@pytest.mark.parametrize(("engine", "busy"), [(COMPILES, True), (HOOK, False)])
def test_a_backward_pass_is_compiled_in_the_thread_of_the_engine(engine: tuple[Frame, ...], busy: bool) -> None:
    """The training thread stands in backward meanwhile; a hook of the program's own runs in the same thread, and is no compiler."""
    job = Training().goes_on(10.0, [FORWARD, *[BACKWARD] * 19], load="idle_context", engine=1.0)
    for number in range(1, 20):
        job.history.add(number / 2, Stack(pid=PID, tid=ENGINE, frames=engine, samples=5, span_seconds=0.4))
    verdict = job.verdict()

    assert ((verdict.state, verdict.cause) == ("busy", "compiling")) is busy


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
    verdict = Training(card=False).goes_on(8.0, [frames]).verdict()

    assert (verdict.state, verdict.cause) == ("busy", "compiling" if compiling else "starting")


def test_a_compiler_that_imports_for_its_work_is_not_starting() -> None:
    """Of a first compilation half the time goes into imports."""
    job = Training(card=False).goes_on(8.0, [IMPORTS + ASKS_FOR_IT + MAIN, IMPORTS + COMPILES + MAIN, COMPILES + MAIN])
    verdict = job.verdict()

    assert (verdict.state, verdict.cause) == ("busy", "compiling")


def compiles_anew(
    *then: tuple[Frame, ...], passed: bool = True, seconds: float = 3.0, around: tuple[str, ...] = TRAINS
) -> Verdict:
    """Eight seconds in the compiler for a forward pass, and what follows; ``passed``: torch's engine has run before."""
    job = Training()
    job.add(SourceLine(file="/app/train.py", line=12, text="loss = model(x)", loops=("for",), loop_calls=around))
    if passed:
        job.add(
            Thread(pid=PID, tid=ENGINE, name="pt_autograd_0", state="S", cpu_seconds=46.0, voluntary_switches=90,
                   run_seconds=46.0, ran_ago_seconds=6.0)
        )  # fmt: skip
    job.goes_on(8.0, [IN_FORWARD], load="idle_context")
    for frames in then:
        job.goes_on(seconds, [frames], load="idle_context")
    return job.verdict()


def test_a_compilation_before_any_pass_is_the_first() -> None:
    """Nothing was trained yet."""
    verdict = compiles_anew(passed=False)

    assert (verdict.state, verdict.cause) == ("busy", "compiling")
    assert level(verdict.confidence) == "certain"


def test_a_compilation_after_a_pass_may_be_one_of_many() -> None:
    """A second shape, or one for each step: it is not known yet."""
    verdict = compiles_anew()

    assert (verdict.state, verdict.cause) == ("busy", "compiling")
    assert level(verdict.confidence) != "certain"


def test_one_that_comes_back_after_another_step_is_one_of_many() -> None:
    """However long a step takes: compiled before, in it, and again after it."""
    verdict = compiles_anew(BACKWARD, OPTIMIZER, IN_FORWARD)

    assert (verdict.state, verdict.cause) == ("slow", "recompiling"), verdict.summary
    assert level(verdict.confidence) != "certain"
    assert compiles_anew(BACKWARD, OPTIMIZER, IN_FORWARD, passed=False).state != "slow"


def test_shapes_that_are_tried_before_training_are_no_recompilation() -> None:
    """Passes in a loop without a step: each shape is compiled once, and it is known for what."""
    verdict = compiles_anew(BACKWARD, IN_FORWARD, IN_FORWARD, IN_FORWARD, around=TRAINS[:2])

    assert (verdict.state, verdict.cause) == ("busy", "compiling"), verdict.summary
    assert level(verdict.confidence) == "certain"


def test_passes_that_the_compiler_traces_are_none_of_the_training() -> None:
    """The inner half of a torn stack looks like one."""
    assert compiles_anew(*[IN_FORWARD, BACKWARD[:1]] * 3, IN_FORWARD, seconds=0.5).state != "slow"
