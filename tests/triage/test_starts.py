"""A run that has only just begun is not called slow: what its start cost is still in every window."""

import pytest
from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, NativeProfile, Process, SourceLine, Steps
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training, confidence_in

RECORDED = RECORDINGS / "starved_by_transforms" / "fires" / "between_two_samples"
BAGS = "/app/bags.py"
LOADS = (Frame("overlaps", BAGS, 31), Frame("step", BAGS, 40), Frame("main", TRAIN, 52))
MOSTLY_LOADS = [FORWARD, LOADS, LOADS, BACKWARD, LOADS, LOADS, OPTIMIZER, LOADS]
SLOW = ("slow", "serial_loading")


def makes_its_own_batches() -> Training:
    """A process that was started a second ago, whose training thread makes its batches itself."""
    job = Training(card=False)
    process = job.history.latest(Process, PID)
    assert process is not None
    job.add(
        structs.replace(process.reading, age_seconds=1.0),
        SourceLine(file=TRAIN, line=52, text="batch = bags.step(index)", calls=("bags.step",), loops=("for",)),
        SourceLine(file=BAGS, line=31, text="near = [b for b in self.bags if b.at(x)]", loops=("for",)),
    )
    return job


@pytest.mark.parametrize(
    ("mode", "count", "intervals", "now", "begins"),
    [
        ("run", 3, (0.5, 0.5), 5.0, True),
        ("run", 3, (0.5, 0.5), 20.0, False),
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
    """By the count of the agent, and by the age of the process where nothing was counted; until then nothing is called slow."""
    job = makes_its_own_batches().goes_on(now, MOSTLY_LOADS, samples=20)
    if count:
        job.history.add(2.0, Steps(pid=PID, tid=PID, count=count, interval_seconds=intervals))
    verdict = judge(Case(job.history, session(mode=mode, root_pids=(PID,))))

    assert (verdict.state, verdict.cause) == (("inconclusive", None) if begins else SLOW)


EXECUTES = Frame("_LoaderBasics.exec_module", "<frozen importlib._bootstrap_external>", 995)
LOOKS_UP = Frame("_handle_fromlist", "<frozen importlib._bootstrap>", 1415)
OPTIMIZER_IS_MADE = Frame("main", TRAIN, 9)


@pytest.mark.parametrize(
    ("at_first", "seconds", "begins"),
    [
        ((EXECUTES, OPTIMIZER_IS_MADE), 4, True),
        ((EXECUTES, OPTIMIZER_IS_MADE), 20, False),
        ((LOOKS_UP, OPTIMIZER_IS_MADE), 4, False),
        ((*FORWARD, EXECUTES, Frame("<module>", "/app/start.py", 2)), 4, False),
    ],
    ids=["just_now", "long_ago", "looks_a_module_up", "trains_where_it_is_imported"],
)
def test_who_was_seen_to_import_a_library_has_just_begun(
    at_first: tuple[Frame, ...], seconds: float, begins: bool
) -> None:
    """The optimizer imports torch's compiler, and the first step follows at once."""
    job = makes_its_own_batches().goes_on(2, [at_first]).goes_on(seconds, MOSTLY_LOADS, samples=20)
    verdict = judge(Case(job.history, session(mode="attach", root_pids=(PID,))))

    assert (verdict.state, verdict.cause) == (("inconclusive", None) if begins else SLOW)


def test_a_run_that_is_slow_from_its_first_step_is_told_so_once_its_start_is_over() -> None:
    """Neither slow nor healthy before: the same workers compute all the time, and the model waits."""
    recording = load_case(RECORDED)

    assert {diagnose(recording, at).state for at in (6.0, 9.0, 12.0)} <= {"inconclusive", "busy"}
    assert (diagnose(recording, 55.0).state, diagnose(recording, 55.0).cause) == ("slow", "starved_by_transforms")


@pytest.mark.parametrize(("importing", "cause"), [(False, "compiling"), (True, "starting")])
def test_the_import_of_the_compiler_is_no_compilation(importing: bool, cause: str) -> None:
    """The first optimizer step of any program imports torch._dynamo."""
    inside = Frame("compile_inner", "/venv/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py", 700)
    imports = (Frame("_find_and_load", "<frozen importlib._bootstrap>", 1360),) if importing else ()
    verdict = Training(card=False).goes_on(10, [(inside, *imports, Frame("main", TRAIN, 31))]).verdict()

    assert (verdict.state, verdict.cause) == ("busy", cause)


@pytest.mark.parametrize(("taken_at", "samples", "tells"), [(6.0, 199, False), (14.0, 199, True), (14.0, 14, False)])
def test_a_native_profile_tells_of_training_and_of_all_its_time(taken_at: float, samples: int, tells: bool) -> None:
    """Imports collect garbage for a quarter of their time; the first step ended at 10 s. A thread that sleeps has few samples."""
    job = Training(card=False).goes_on(26, [FORWARD, BACKWARD, OPTIMIZER])
    for at, count in ((10.0, 1), (18.0, 17), (26.0, 33)):
        intervals = (0.5,) * min(16, count - 1)
        job.history.add(at, Steps(pid=PID, tid=PID, count=count, step_ago_seconds=0.1, interval_seconds=intervals))
    shares = {"gc_collect_main": 0.25, "at::add": 0.7}
    job.history.add(taken_at, NativeProfile(pid=PID, tid=PID, shares=shares, samples=samples))

    assert (job.verdict().cause == "garbage_collection") is tells


def compiled(*later: int) -> Verdict:
    """A model that was compiled for eight seconds, and again in these of the seconds after that."""
    compiles = (Frame("compile_fx_inner", f"{TORCH}/_inductor/compile_fx.py", 9), *FORWARD)
    job = Training(card=False).goes_on(8, [compiles, FORWARD])
    for second in range(13):
        seen = [compiles] if second in later else [FORWARD, BACKWARD, OPTIMIZER]
        job.goes_on(1.0, seen).steps(5 * second + 5, *[0.2] * 5)
    return job.verdict()


def test_a_model_that_was_compiled_before_its_first_step_is_not_compiled_again_and_again() -> None:
    """The compiler is still in the window by which slowness is judged, and the samples of it come and go."""
    once, again = compiled(), compiled(2, 5, 8, 11)

    assert once.state == "healthy"
    assert confidence_in(once, "recompiling") == 0.0
    assert confidence_in(again, "recompiling") > 0.0
