"""Trainings that a driver or a shell starts: who is judged, and that those which only run beside each other are not compared."""

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job, read_job
from perfwatch.triage.roles.sights import GROUP_THREADS
from perfwatch.triage.rules import straggling_rank
from perfwatch.triage.words.frames import any_tag, tags
from perfwatch_probes.readings import (
    Communicator,
    Frame,
    Process,
    ProcessEnded,
    Reading,
    RecordedGroup,
    Stack,
    Steps,
    Thread,
)
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD
from tests.triage import rank_looks as looks_at

DRIVER, FIRST, SECOND, SERVER = 100, 301, 302, 303
SUBPROCESS, PROCESS = "/usr/lib/python3.11/subprocess.py", "/usr/lib/python3.11/multiprocessing/process.py"
RUNS = (Frame("wait", SUBPROCESS, 1264), Frame("run", SUBPROCESS, 550), Frame("main", "/app/sweep.py", 12))
JOINS = (Frame("join", PROCESS, 149), Frame("main", "/app/sweep.py", 12))
IMPORTS = (
    Frame("Adamax", "/v/lib/python3.12/site-packages/torch/optim/adamax.py", 122),
    Frame("_find_and_load", "<frozen importlib._bootstrap>", 1147),
    Frame("<module>", "/app/sweep.py", 1),
)
ASKS = (Frame("poll", "/app/sweep.py", 40),)
ENGINE = "/usr/lib/python3.11/site-packages/vllm/v1/engine/core.py"
NEXT_REQUEST = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 320),
    Frame("get", "/usr/lib/python3.11/queue.py", 171),
    Frame("_process_input_queue", ENGINE, 700),
    Frame("_bootstrap", PROCESS, 314),
)
GENERATES = (*FORWARD[:1], Frame("step", ENGINE, 400), Frame("_bootstrap", PROCESS, 314))
REDUCES = (Frame("all_reduce", "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 3000), *ASKS)
LOADS = (Frame("load", "/app/grpo.py", 30),)


def process(
    history: History, pid: int, parent: int, *stacks: tuple[Frame, ...], steps: int = 0, rank: int | None = None
) -> None:
    """One with torch, and what was seen of it."""
    history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python", f"{pid}.py"),
                             python=True, torch_loaded=True, rank=rank))  # fmt: skip
    for at, frames in enumerate(stacks, 1):
        history.add(float(at), Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.5))
    if steps:
        history.add(2.0, Steps(pid=pid, tid=pid, count=steps, step_ago_seconds=0.1))


def job(history: History) -> Job:
    """Half a minute later."""
    history.at = 30.0
    return read_job(history)


def started(*stacks: tuple[Frame, ...], steps: int = 0) -> History:
    """A driver that was seen in these, and what it started: two trainings, of which one is counted or none, and a server."""
    history = History()
    process(history, DRIVER, 1, *stacks)
    process(history, FIRST, DRIVER, BACKWARD, FORWARD, steps=steps)
    process(history, SECOND, DRIVER, BACKWARD, FORWARD)
    process(history, SERVER, DRIVER, FORWARD)
    return history


def pids(found: Job) -> list[int]:
    """Of its ranks."""
    return [rank.pid for rank in found.ranks]


@pytest.mark.parametrize("waits", [RUNS, JOINS])
def test_below_a_driver_that_waits_each_process_that_makes_steps_is_judged_by_itself(waits: tuple[Frame, ...]) -> None:
    """The driver has torch too, whose optimizers it only imported; what only runs a model is no training."""
    found = job(started(IMPORTS, waits))

    assert pids(found) == [FIRST, SECOND]
    assert [rank.rank for rank in found.ranks] == [None, None]
    assert found.apart


def test_a_driver_that_asks_now_and_then_is_known_by_the_steps_that_are_counted_below_it() -> None:
    """It was not seen to wait for a child: without a count it might train itself."""
    assert pids(job(started(ASKS, steps=7))) == [FIRST, SECOND]
    assert pids(job(started(ASKS))) == [DRIVER]


def test_a_process_that_trains_is_the_rank_whatever_it_started() -> None:
    """It also tries something in a child, and waits for that at the moment."""
    assert pids(job(started(BACKWARD, RUNS, steps=7))) == [DRIVER]


def test_a_training_that_has_ended_is_no_rank_of_the_driver_that_goes_on() -> None:
    """The next trial is about to begin."""
    history = started(IMPORTS, RUNS, steps=7)
    for pid in (FIRST, SECOND):
        history.add(20.0, ProcessEnded(pid=pid, start_ticks=pid, exit_code=0))

    assert pids(job(history)) == [DRIVER]


def test_what_a_shell_starts_is_of_one_training_only_where_something_says_so() -> None:
    """A number of torch's, or a thread of a process group."""
    beside, grouped, numbered = History(), History(), History()
    for one, ranks in ((beside, (None, None)), (grouped, (None, None)), (numbered, (0, 1))):
        for pid, rank in zip((FIRST, SECOND), ranks, strict=True):
            process(one, pid, 1, BACKWARD, FORWARD, rank=rank)
    grouped.add(3.0, Thread(pid=FIRST, tid=FIRST + 50, name="pt_nccl_watchdg", state="S", cpu_seconds=0.0))

    assert [job(one).apart for one in (beside, grouped, numbered)] == [True, False, False]


def above_an_engine(
    *stacks: tuple[Frame, ...],
    engine: tuple[tuple[Frame, ...], ...] = (NEXT_REQUEST,),
    engines: int = 1,
    steps: int = 0,
) -> Job:
    """A program seen in these, and processes of an inference engine below it, each with a process group of its own."""
    history = History()
    process(history, DRIVER, 1, *stacks, steps=steps)
    for pid in range(FIRST, FIRST + engines):
        process(history, pid, DRIVER, *engine)
        history.add(3.0, Thread(pid=pid, tid=pid + 50, name="pt_nccl_watchdg", state="S", cpu_seconds=0.0))
    return job(history)


@pytest.mark.parametrize("engine", [(NEXT_REQUEST,), (GENERATES,)])
@pytest.mark.parametrize("engines", [1, 2])
def test_a_training_with_an_inference_engine_below_it_is_the_rank(
    engine: tuple[tuple[Frame, ...], ...], engines: int
) -> None:
    """The engine has a process group and the training has none, and no step was ever made in the engine."""
    assert pids(above_an_engine(BACKWARD, LOADS, engine=engine, engines=engines, steps=7)) == [DRIVER]


@pytest.mark.parametrize(("waits_in", "state"), [(None, "healthy"), ("take", "hung")])
def test_an_engine_that_waits_for_work_neither_hangs_nor_hides_a_training_that_does(
    waits_in: str | None, state: str
) -> None:
    """For two minutes it is asked nothing, while the training makes steps, or waits for a lock."""
    until = looks_at.STOPPED + 120.0
    history = looks_at.job(1, trained=waits_in is not None)
    history.add(0.0, looks_at.process(FIRST, looks_at.FIRST, "python grpo.py"))
    history.add(21.0, Thread(pid=FIRST, tid=FIRST + 50, name="pt_nccl_watchdg", state="S", cpu_seconds=0.1))
    looks_at.stands(history, FIRST, NEXT_REQUEST, looks_at.FOR_EVER, until)
    if waits_in is None:
        looks_at.runs(history, looks_at.FIRST, looks_at.STEP, looks_at.BEGAN, until)
        for second in range(int(looks_at.BEGAN) + 1, int(until)):
            done = int((second - looks_at.BEGAN) / looks_at.STEP_SECONDS)
            history.add(float(second), Steps(pid=looks_at.FIRST, tid=looks_at.FIRST, count=done, step_ago_seconds=0.1,
                                             interval_seconds=(looks_at.STEP_SECONDS,) * 4))  # fmt: skip
    else:
        line = (Frame(waits_in, looks_at.TRAIN, 55), looks_at.MODULE)
        looks_at.stands(history, looks_at.FIRST, line, looks_at.FOR_EVER, until)

    verdict = looks_at.judged(history, until)

    assert verdict.state == state
    assert {one.pid for one in verdict.culprits} <= {looks_at.FIRST}


def test_a_training_in_a_group_of_its_own_is_alone_there_once_its_engine_has_asked_for_work() -> None:
    """A process that was never seen to ask may be its second rank, which hangs before its first step."""
    assert pids(above_an_engine(BACKWARD, REDUCES, engine=(NEXT_REQUEST, GENERATES), steps=7)) == [DRIVER]
    assert pids(above_an_engine(BACKWARD, REDUCES, engine=(GENERATES,), steps=7)) == [DRIVER, FIRST]


@pytest.mark.parametrize(
    ("parent", "engine", "rank"),
    [(LOADS, NEXT_REQUEST, DRIVER), (LOADS, GENERATES, FIRST), (LOADS, ASKS, FIRST), (JOINS, NEXT_REQUEST, FIRST)],
)
def test_before_the_first_step_an_engine_without_work_is_no_rank(
    parent: tuple[Frame, ...], engine: tuple[Frame, ...], rank: int
) -> None:
    """One that works may be all that the program is there for, and what is joined is never a servant."""
    assert pids(above_an_engine(parent, engine=(engine,))) == [rank]


def test_ranks_that_train_below_a_process_that_trained_first_are_the_ranks() -> None:
    """It tried a few steps itself before it started them."""
    assert pids(above_an_engine(BACKWARD, ASKS, engine=(BACKWARD,), engines=2, steps=7)) == [FIRST, FIRST + 1]


@pytest.mark.parametrize("number", [{}, {"SLURM_PROCID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}])
def test_a_training_is_not_last_behind_one_that_it_has_nothing_to_do_with(number: dict[str, str]) -> None:
    """The cards as of a rank that is late, of trainings that a shell started, or srun, which numbers whatever it starts."""
    case = RECORDINGS / "straggling_rank" / "fires" / "straggling_rank-nccl"
    at, whole = expected_of(case).at, load_case(case)
    history, together = History(), History()
    for one in whole.records:
        if one.at <= at:
            together.add(one.at, one.reading)
            if (reading := alone(one.reading, number)) is not None:
                history.add(one.at, reading)
    history.at = together.at = at

    assert straggling_rank.judge(Case(together, whole.session)) is not None
    assert straggling_rank.judge(Case(history, whole.session)) is None


def alone(reading: Reading, number: dict[str, str]) -> Reading | None:
    """A reading of a training that is in no group, numbered by these words or not at all."""
    if isinstance(reading, Process):
        words = {name: word.format(rank=reading.rank) for name, word in number.items() if reading.rank is not None}
        return structs.replace(reading, rank=None, world_size=None, environment=words)
    if isinstance(reading, Thread) and reading.name.startswith(GROUP_THREADS):
        return None
    if isinstance(reading, Stack) and any_tag(tags(reading), "collective", "rendezvous"):
        return None
    return None if isinstance(reading, Communicator | RecordedGroup) else reading


def test_folds_in_processes_of_their_own_are_judged_as_what_they_are() -> None:
    """Real: two folds, each with a loader, which a driver with torch waits for; each is short of data, and none of them hangs."""
    case = RECORDINGS / "stuck_worker" / "lookalike" / "folds_of_a_driver"
    verdict = diagnose(load_case(case), expected_of(case).at)

    assert (verdict.state, verdict.cause) == ("slow", "starved_by_transforms")


def test_a_real_training_with_an_idle_server_in_a_group_of_one_is_what_is_judged() -> None:
    """Real: the server asks a queue for requests that never come, the training makes a step each 5 ms."""
    case = RECORDINGS / "deadlocked_locks" / "lookalike" / "idle_engine_below_a_training"
    verdict = diagnose(load_case(case), expected_of(case).at)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
