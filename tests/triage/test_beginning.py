"""A run that has only just begun is not called slow: what its start cost is still in every window."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.rules import recompiling
from perfwatch.triage.shares import in_compiler
from perfwatch.triage.shares.beginning import SETTLED_SECONDS, beginning
from perfwatch.triage.shares.native import native_profile
from perfwatch_probes.readings import Frame, NativeProfile, Process, Stack, Steps
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TORCH, Training

RECORDED = RECORDINGS / "starved_by_transforms" / "fires" / "between_two_samples"


def stepped(mode: str, count: int, intervals: tuple[float, ...], now: float) -> Case:
    """A process whose steps were first read two seconds after the watch began."""
    history = History(at=now)
    history.add(
        0.0,
        Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, age_seconds=1.0),
    )  # fmt: skip
    if count:
        history.add(2.0, Steps(pid=7, tid=7, count=count, interval_seconds=intervals))
    return Case(history, session(mode=mode, root_pids=(7,)))


@pytest.mark.parametrize(
    ("mode", "count", "intervals", "now", "begins"),
    [
        ("run", 3, (0.5, 0.5), 5.0, True),
        ("run", 3, (0.5, 0.5), 2.0 + SETTLED_SECONDS, False),
        ("run", 66, (0.01,) * 64, 5.0, True),  # a second of brief steps
        ("attach", 900, (0.5,) * 64, 5.0, False),  # it has long been training: nobody saw its start
        ("run", 0, (), 5.0, True),
        ("run", 0, (), 60.0, False),  # a loop whose steps cannot be counted
        ("attach", 0, (), 5.0, False),
    ],
)
def test_only_who_saw_the_first_steps_knows_that_they_were_the_first(
    mode: str, count: int, intervals: tuple[float, ...], now: float, begins: bool
) -> None:
    """By the count of the agent, and by the age of the process where nothing was counted."""
    assert beginning(stepped(mode, count, intervals, now)) is begins


def test_a_run_that_is_slow_from_its_first_step_is_told_so_once_its_start_is_over() -> None:
    """Neither slow nor healthy before: the same workers compute all the time, and the model waits."""
    recording = load_case(RECORDED)

    assert {diagnose(recording, at).state for at in (6.0, 9.0, 12.0)} <= {"inconclusive", "busy"}
    assert (diagnose(recording, 55.0).state, diagnose(recording, 55.0).cause) == ("slow", "starved_by_transforms")


@pytest.mark.parametrize(("importing", "compiles"), [(False, True), (True, False)])
def test_the_import_of_the_compiler_is_no_compilation(importing: bool, compiles: bool) -> None:
    """The first optimizer step of any program imports torch._dynamo."""
    inside = Frame("compile_inner", "/venv/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py", 700)
    imports = (Frame("_find_and_load", "<frozen importlib._bootstrap>", 1360),) if importing else ()

    assert (
        in_compiler.compiles(Stack(pid=7, tid=7, frames=(inside, *imports, Frame("main", "/app/train.py", 31))))
        is compiles
    )


@pytest.mark.parametrize(("taken_at", "tells"), [(6.0, False), (14.0, True)])
def test_a_native_profile_of_the_imports_says_nothing_of_training(taken_at: float, tells: bool) -> None:
    """They collect garbage for a quarter of their time; the first step ended at 10 s."""
    case = stepped("run", 0, (), 20.0)
    for at, count in ((10.0, 1), (20.0, 21)):
        case.history.add(at, Steps(pid=7, tid=7, count=count, interval_seconds=(0.5,) * min(20, count - 1)))
    case.history.add(taken_at, NativeProfile(pid=7, tid=7, shares={"gc_collect_main": 0.25}, samples=100))

    assert (native_profile(case, case.ranks[0]) is not None) is tells


def test_a_model_that_was_compiled_before_its_first_step_is_not_compiled_again_and_again() -> None:
    """The compiler is still in the window by which slowness is judged, and the samples of it come and go."""
    compiles = (Frame("compile_fx_inner", f"{TORCH}/_inductor/compile_fx.py", 9), *FORWARD)
    job = Training(card=False).goes_on(8, [compiles, FORWARD]).goes_on(6, [FORWARD, BACKWARD, OPTIMIZER])
    job = job.steps(31, *[0.2] * 30).goes_on(6.5, [FORWARD, BACKWARD, OPTIMIZER])
    case = job.steps(62, *[0.2] * 31).case()

    assert not beginning(case)
    assert case.profile(case.ranks[0], 20.0).share("compile") > 0.15
    assert recompiling.judge(case) is None


EXECUTES = Frame("_LoaderBasics.exec_module", "<frozen importlib._bootstrap_external>", 995)
LOOKS_UP = Frame("_handle_fromlist", "<frozen importlib._bootstrap>", 1415)
OPTIMIZER_IS_MADE = Frame("main", "/app/train.py", 9)


@pytest.mark.parametrize(
    ("at_first", "seconds", "begins"),
    [
        ((EXECUTES, OPTIMIZER_IS_MADE), 4, True),
        ((EXECUTES, OPTIMIZER_IS_MADE), SETTLED_SECONDS + 4, False),
        ((LOOKS_UP, OPTIMIZER_IS_MADE), 4, False),
        ((*FORWARD, EXECUTES, Frame("<module>", "/app/start.py", 2)), 4, False),
    ],
    ids=["just_now", "long_ago", "looks_a_module_up", "trains_where_it_is_imported"],
)
def test_who_was_seen_to_import_a_library_has_just_begun(
    at_first: tuple[Frame, ...], seconds: float, begins: bool
) -> None:
    """The optimizer imports torch's compiler, and the first step follows at once."""
    job = Training(card=False).goes_on(2, [at_first]).goes_on(seconds, [FORWARD, BACKWARD, OPTIMIZER])

    assert beginning(job.case()) is begins
