"""Which processes of a tree are ranks, and which number they have: the culprit of a verdict when a process is stopped."""

from collections.abc import Iterable

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
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
from tests.sessions import session
from tests.training import BACKWARD, FORWARD
from tests.triage import rank_looks

LIB = "/venv/lib/python3.12/"
TORCH = LIB + "site-packages/torch/"
SPAWN, C10D = TORCH + "multiprocessing/spawn.py", TORCH + "distributed/distributed_c10d.py"
TRAIN = "python train.py"
Timed = tuple[float, Reading]


def process(pid: int, parent: int, command: str = TRAIN, environment: str = "", name: str = "python") -> Process:
    """One process; ``RANK`` and ``WORLD_SIZE`` become what the probe makes of them."""
    names = dict(word.split("=", 1) for word in environment.split())
    return Process(
        pid=pid,
        start_ticks=pid,
        parent_pid=parent,
        name=name,
        command=tuple(command.split()),
        python=name.startswith(("python", "pt_")),
        torch_loaded=name.startswith(("python", "pt_")),
        rank=int(names["RANK"]) if "RANK" in names else None,
        world_size=int(names["WORLD_SIZE"]) if "WORLD_SIZE" in names else None,
        environment=names,
    )


def stopped(pid: int, readings: Iterable[Timed]) -> Verdict:
    """The verdict on these when all threads of one process are stopped."""
    known = list(readings)
    history = History(at=30.0)
    for at, reading in known:
        history.add(at, reading)
    names = {pid: "python"}
    for _, reading in known:
        if isinstance(reading, Stack | Thread) and reading.pid == pid:
            names[reading.tid] = reading.name if isinstance(reading, Thread) else names.get(reading.tid, "python")
    for at in (26.0, 29.9):
        for tid, name in names.items():
            history.add(at, Thread(pid=pid, tid=tid, name=name, state="T", cpu_seconds=5.0, run_seconds=5.0,
                                   ran_ago_seconds=at - 10.0))  # fmt: skip
    roots = {reading.parent_pid for _, reading in known if isinstance(reading, Process)}
    pids = {reading.pid for _, reading in known if isinstance(reading, Process)}
    return judge(Case(history, session(root_pids=tuple(sorted(roots - pids)))))


def numbered(*readings: Reading | Timed) -> list[tuple[int, int | None]]:
    """Pid and rank of those that hang when a process of the tree is stopped: a rank that stops, or waits for one that does."""
    timed = [one if isinstance(one, tuple) else (0.0, one) for one in readings]
    ended = {reading.pid for _, reading in timed if isinstance(reading, ProcessEnded)}
    pids = {reading.pid for _, reading in timed if isinstance(reading, Process)} - ended
    verdicts = [stopped(pid, timed) for pid in sorted(pids)]
    named = [one.culprits[0] for one in verdicts if one.cause == "stopped"]
    return list(dict.fromkeys((culprit.pid, culprit.rank) for culprit in named))


def world_size(*readings: Reading) -> int | None:
    """How many ranks the job has, seen or not."""
    return stopped(0, [(0.0, one) for one in readings]).coverage.world_size


def pids(*readings: Reading | Timed) -> list[int]:
    """Of the ranks."""
    return [pid for pid, _ in numbered(*readings)]


WAITS_FOR_A_BATCH = (
    Frame("_try_get_data", TORCH + "utils/data/dataloader.py", 1275),
    Frame("main", "/app/train.py", 9),
)


def test_torchrun_numbers_its_ranks_and_their_workers_inherit_the_number() -> None:
    """Two ranks, each with a worker; the first waits for its worker, which is stopped."""
    job = [
        process(10, 1, "python /env/bin/torchrun train.py"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 LOCAL_RANK={n}") for n in range(2)),
        *(process(30 + n, 20 + n, environment=f"RANK={n} WORLD_SIZE=2", name="pt_data_worker") for n in range(2)),
    ]
    waits = [
        (at, one)
        for at in (20.0, 29.0)
        for one in (
            Stack(pid=21, tid=21, frames=WAITS_FOR_A_BATCH, samples=9, span_seconds=0.5),
            Thread(
                pid=21, tid=21, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0, ran_ago_seconds=at - 10.0
            ),
        )
    ]
    verdict = stopped(31, [*((0.0, one) for one in job), *waits])

    assert numbered(*job) == [(20, 0), (21, 1)]
    assert world_size(*job) == 2
    assert (verdict.state, verdict.culprits[0].rank, verdict.culprits[0].worker_pid) == ("hung", 1, 31)


@pytest.mark.parametrize(
    "command",
    [
        "python /usr/local/bin/torchrun --nnodes 2 train.py",
        "python -m torch.distributed.run train.py",
        "python -X importtime -u -m torch.distributed.run train.py",
        "python -u /env/bin/accelerate launch train.py",
        "python -u -m deepspeed.launcher.launch --world_info=e30= train.py",
        "python /env/bin/deepspeed train.py",
    ],
)
def test_the_number_of_the_host_that_a_launcher_inherited_is_not_a_rank(command: str) -> None:
    """Kubeflow's operator sets RANK on the container: its rank 0 is the first rank below, and the launcher is none."""
    job = [
        process(10, 1, command, "RANK=0 WORLD_SIZE=2"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=16 LOCAL_RANK={n}") for n in range(8)),
    ]

    assert numbered(*job) == [(20 + n, n) for n in range(8)]
    assert world_size(*job) == 16


@pytest.mark.parametrize("command", ["python train.py --launcher torchrun", "python -c pass", "python"])
def test_a_program_is_no_launcher_for_what_its_arguments_say(command: str) -> None:
    """Only the script or module that a Python runs counts."""
    assert numbered(process(10, 1, command, "RANK=0 WORLD_SIZE=1"), process(20, 10, "bash copy.sh", name="bash")) == [
        (10, 0)
    ]


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("OMPI_COMM_WORLD_RANK={} PMIX_RANK={}", "OMPI_COMM_WORLD_SIZE=4"),
        ("PMI_RANK={}", "PMI_SIZE=4"),
        ("MV2_COMM_WORLD_RANK={}", "MV2_COMM_WORLD_SIZE=4"),
        ("SLURM_PROCID={} SLURM_STEP_ID=0", "SLURM_NTASKS=4"),
        ("FLUX_TASK_RANK={}", "FLUX_JOB_SIZE=4"),
    ],
)
def test_a_launcher_for_each_rank_numbers_them_in_its_own_words(rank: str, size: str) -> None:
    """The program makes RANK of it where no probe can see."""
    job = [
        process(10, 1, "orted --hnp", name="orted"),
        *(process(20 + n, 10, environment=f"{rank.replace('{}', str(n + 2))} {size}") for n in range(2)),
        process(30, 21, environment=f"{rank.replace('{}', '3')} {size}", name="pt_data_worker"),
    ]

    assert numbered(*job) == [(20, 2), (21, 3)]
    assert world_size(*job) == 4


def test_a_batch_script_is_no_rank_although_slurm_numbers_it() -> None:
    """It has the number 0 of as many tasks as were asked for, and trains alone."""
    alone = process(20, 1, environment="SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7")

    assert numbered(alone) == [(20, None)]
    assert world_size(alone) == 1


def test_torchrun_below_srun_is_numbered_by_torchrun() -> None:
    """Slurm numbers the hosts there, and its numbers are inherited by the ranks."""
    slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7"
    job = [
        process(5, 1, "slurmstepd: [7.0]", name="slurmstepd"),
        process(10, 5, "python /env/bin/torchrun train.py", slurm),
        *(process(20 + n, 10, environment=f"{slurm} RANK={8 + n} WORLD_SIZE=16") for n in range(8)),
    ]

    assert numbered(*job) == [(20 + n, 8 + n) for n in range(8)]
    assert world_size(*job) == 16


def test_a_program_that_spawns_its_ranks_stands_for_its_host() -> None:
    """RANK is the host's number there, as in the ImageNet example: its four children are ranks 4 to 7 of 8."""
    joins = Stack(pid=10, tid=10, frames=(Frame("join", SPAWN, 132), Frame("main", "/app/main.py", 90)))
    command = "python -c from_multiprocessing.spawn --multiprocessing-fork"
    job = [
        process(10, 1, "python main.py", "RANK=1 WORLD_SIZE=2"),
        joins,
        *(process(20 + n, 10, command, "RANK=1 WORLD_SIZE=2") for n in range(4)),
    ]

    assert numbered(*job) == [(20 + n, 4 + n) for n in range(4)]
    assert world_size(*job) == 8


def test_a_plain_spawn_is_numbered_in_the_order_of_its_start() -> None:
    """No environment tells a number; the spawner's own DataLoader worker and Python's resource tracker are no ranks."""
    joins = Stack(pid=10, tid=10, frames=(Frame("join", SPAWN, 132), Frame("main", "/app/main.py", 90)))
    job = [
        process(10, 1, "python main.py"),
        joins,
        process(18, 10, "python -c from multiprocessing.resource_tracker import main"),
        process(19, 10, "python main.py", name="pt_data_worker"),
        *(process(20 + n, 10, "python main.py") for n in range(2)),
    ]

    assert numbered(*job) == [(20, 0), (21, 1)]


def test_trees_without_numbers_are_numbered_once_one_is_in_a_collective() -> None:
    """Trainings that were started together stay apart until then."""
    trees = [process(20 + n, 1, f"python stage.py {n} 3") for n in range(3)]
    receives = Stack(pid=21, tid=21, frames=(Frame("recv", C10D, 2600), Frame("forward", "/app/stage.py", 40)))

    assert numbered(*trees, receives) == [(20, 0), (21, 1), (22, 2)]
    assert numbered(*trees) == [(20, None), (21, None), (22, None)]


def test_an_elastic_restart_replaces_the_ranks() -> None:
    """The youngest that lives has the number."""
    job = [
        process(10, 1, "python /env/bin/torchrun train.py"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0") for n in range(2)),
        *(process(40 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=1") for n in range(2)),
    ]

    assert numbered(*job) == [(40, 0), (41, 1)]


def test_a_helper_that_inherits_a_number_given_within_the_training_is_no_rank() -> None:
    """``MPI_Init`` numbers the training's own process, which shows in what it starts afterwards alone."""
    shipper = structs.replace(process(20, 10, "python -c ship", "PMIX_RANK=0 PMIX_NAMESPACE=7"), torch_loaded=False)

    assert numbered(process(10, 1), shipper, process(21, 10, name="pt_data_worker")) == [(10, None)]


def test_a_rank_that_has_not_imported_torch_yet_is_one_below_a_launcher_that_has() -> None:
    """A script that has torch starts its ranks and waits for them."""
    waits = (Frame("wait", LIB + "subprocess.py", 1264), Frame("main", "/app/launch.py", 9))
    rank = structs.replace(process(20, 10, environment="RANK=0 WORLD_SIZE=1"), torch_loaded=False)

    assert numbered(process(10, 1, "python launch.py"), rank, Stack(pid=10, tid=10, frames=waits)) == [(20, 0)]


RAY = "/env/lib/python3.11/site-packages/ray/"
TAKES_CALLS = (Frame("main_loop", RAY + "_private/worker.py", 1069),)
TRAINS = (
    Frame("report", RAY + "train/v2/_internal/execution/context.py", 474),
    Frame("train_loop", "/app/lm.py", 41),
    Frame("_run_target", RAY + "train/v2/_internal/execution/worker_group/thread_runner.py", 37),
)
TRIES = (
    Frame("trial", "/app/tune.py", 33),
    Frame("_trainable_func", RAY + "tune/trainable/function_trainable.py", 249),
    Frame("run", RAY + "air/_internal/util.py", 98),
)


def ray(*titles: str, frames: tuple[Frame, ...] = TRAINS) -> list[Reading]:
    """A driver that Slurm has numbered, its raylet, and below that processes with these titles, from pid 40 on."""
    slurm = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0"
    found: list[Reading] = [
        process(20, 1, environment=slurm),
        process(30, 20, RAY + "core/src/ray/raylet/raylet --x", slurm, name="raylet"),
    ]
    for pid, title in enumerate(titles, 40):
        found.append(structs.replace(process(pid, 30, title, slurm, name=title[:15]), python=True, torch_loaded=True))
        found.append(Stack(pid=pid, tid=pid, frames=TAKES_CALLS, samples=1))
        if "Worker" in title or "Func" in title:
            found.append(Stack(pid=pid, tid=pid + 100, frames=frames, samples=1))
    return found


@pytest.mark.parametrize(
    ("titles", "ranks"),
    [
        # Its controller and its actors are none, whatever they inherited.
        (["TrainController.run", "RayTrainWorker", "SynchronizationActor", "RayTrainWorker"], [(41, 0), (43, 1)]),
        # Trials of a sweep that train on several workers each: which is with which is not seen.
        (["TrainController.run", "TrainController.run", "RayTrainWorker", "RayTrainWorker"], [(42, None), (43, None)]),
    ],
)
def test_the_workers_of_ray_train_are_the_ranks(titles: list[str], ranks: list[tuple[int, int | None]]) -> None:
    """Their numbers were given to them where no probe sees it."""
    assert numbered(*ray(*(f"ray::{title}" for title in titles))) == ranks


def test_trials_of_ray_tune_are_trainings_by_themselves() -> None:
    """Their driver only waits for them."""
    titles = ("ray::ImplicitFunc.train", "ray::ImplicitFunc.train", "ray::IDLE")

    assert numbered(*ray(*titles, frames=TRIES)) == [(40, None), (41, None)]


def test_the_older_trainer_in_a_trial_of_its_own_is_no_rank() -> None:
    """It waits for its workers in a thread that is like a trial's, with nothing of the program's own."""
    waits = (Frame("training_loop", RAY + "train/data_parallel_trainer.py", 400), TRIES[-1])

    assert numbered(*ray("ray::ImplicitFunc.train", frames=waits)) == [(20, 0)]


def test_workers_of_ray_that_have_ended_are_ranks_no_more() -> None:
    """Ray replaces the group; where all are gone, the program that started them is looked at."""
    readings = ray("ray::RayTrainWorker", "ray::RayTrainWorker")
    gone = [ProcessEnded(pid=pid, start_ticks=pid) for pid in (40, 41)]

    assert pids(*readings, gone[0]) == [41]
    assert 20 in pids(*readings, *gone)


DRIVER, FIRST, SECOND, SERVER = 100, 301, 302, 303
SUBPROCESS, FORKED = LIB + "subprocess.py", LIB + "multiprocessing/process.py"
RUNS = (Frame("wait", SUBPROCESS, 1264), Frame("run", SUBPROCESS, 550), Frame("main", "/app/sweep.py", 12))
JOINS = (Frame("join", FORKED, 149), Frame("main", "/app/sweep.py", 12))
IMPORTS = (
    Frame("Adamax", TORCH + "optim/adamax.py", 122),
    Frame("_find_and_load", "<frozen importlib._bootstrap>", 1147),
    Frame("<module>", "/app/sweep.py", 1),
)
ASKS = (Frame("poll", "/app/sweep.py", 40),)
ENGINE = LIB + "site-packages/vllm/v1/engine/core.py"
NEXT_REQUEST = (
    Frame("wait", LIB + "threading.py", 320),
    Frame("get", LIB + "queue.py", 171),
    Frame("_process_input_queue", ENGINE, 700),
    Frame("_bootstrap", FORKED, 314),
)
GENERATES = (*FORWARD[:1], Frame("step", ENGINE, 400), Frame("_bootstrap", FORKED, 314))
REDUCES = (Frame("all_reduce", C10D, 3000), *ASKS)
LOADS = (Frame("load", "/app/grpo.py", 30),)


def seen(
    pid: int, parent: int, *stacks: tuple[Frame, ...], steps: int = 0, rank: int | None = None, grouped: bool = False
) -> list[Timed]:
    """A process with torch, and what was seen of it; ``grouped``: it has a thread of a process group."""
    found: list[Timed] = [
        (0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python", f"{pid}.py"),
                      python=True, torch_loaded=True, rank=rank)),
        *((float(at), Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.5))
          for at, frames in enumerate(stacks, 1)),
    ]  # fmt: skip
    if steps:
        found.append((2.0, Steps(pid=pid, tid=pid, count=steps, step_ago_seconds=0.1)))
    if grouped:
        found.append((3.0, Thread(pid=pid, tid=pid + 50, name="pt_nccl_watchdg", state="S", cpu_seconds=0.0)))
    return found


def started(*stacks: tuple[Frame, ...], steps: int = 0) -> list[Timed]:
    """A driver that was seen in these, and what it started: two trainings, of which one is counted or none, and a server."""
    return [
        *seen(DRIVER, 1, *stacks),
        *seen(FIRST, DRIVER, BACKWARD, FORWARD, steps=steps),
        *seen(SECOND, DRIVER, BACKWARD, FORWARD),
        *seen(SERVER, DRIVER, FORWARD),
    ]


@pytest.mark.parametrize("waits", [RUNS, JOINS])
def test_below_a_driver_that_waits_each_process_that_makes_steps_is_judged_by_itself(waits: tuple[Frame, ...]) -> None:
    """The driver has torch too, whose optimizers it only imported; what only runs a model is no training."""
    assert numbered(*started(IMPORTS, waits)) == [(FIRST, None), (SECOND, None)]


@pytest.mark.parametrize(
    ("stacks", "steps", "ranks"),
    [
        ([ASKS], 7, [FIRST, SECOND]),  # it asks now and then: known by the steps that are counted below it
        ([ASKS], 0, [DRIVER]),  # without a count it might train itself
        ([BACKWARD, RUNS], 7, [DRIVER]),  # it trains, and tries something in a child for which it waits at the moment
    ],
)
def test_a_driver_trains_unless_steps_are_counted_below_it(
    stacks: list[tuple[Frame, ...]], steps: int, ranks: list[int]
) -> None:
    """It was not seen to wait for a child, or it was seen to train."""
    assert pids(*started(*stacks, steps=steps)) == ranks


def test_a_training_that_has_ended_is_no_rank_of_the_driver_that_goes_on() -> None:
    """The next trial is about to begin."""
    ends = [(20.0, ProcessEnded(pid=pid, start_ticks=pid, exit_code=0)) for pid in (FIRST, SECOND)]

    assert pids(*started(IMPORTS, RUNS, steps=7), *ends) == [DRIVER]


def above_an_engine(
    *stacks: tuple[Frame, ...],
    engine: tuple[tuple[Frame, ...], ...] = (NEXT_REQUEST,),
    engines: int = 1,
    steps: int = 0,
) -> list[int]:
    """Ranks of a program seen in these, with processes of an inference engine below it, each with a process group of its own."""
    below = [seen(pid, DRIVER, *engine, grouped=True) for pid in range(FIRST, FIRST + engines)]
    return pids(*seen(DRIVER, 1, *stacks, steps=steps), *(one for readings in below for one in readings))


@pytest.mark.parametrize("engine", [(NEXT_REQUEST,), (GENERATES,)])
@pytest.mark.parametrize("engines", [1, 2])
def test_a_training_with_an_inference_engine_below_it_is_the_rank(
    engine: tuple[tuple[Frame, ...], ...], engines: int
) -> None:
    """The engine has a process group and the training has none, and no step was ever made in the engine."""
    assert above_an_engine(BACKWARD, LOADS, engine=engine, engines=engines, steps=7) == [DRIVER]


def test_what_a_training_leaves_behind_does_not_become_the_rank_by_its_end() -> None:
    """A child in a process group outlives it, at which nothing is waited for any more."""
    end = (20.0, ProcessEnded(pid=DRIVER, start_ticks=DRIVER, exit_code=1))
    both = (*seen(DRIVER, 1, BACKWARD, LOADS, steps=7), *seen(FIRST, DRIVER, LOADS, grouped=True))

    assert (pids(*both), pids(*both, end)) == ([DRIVER], [])


def test_a_training_in_a_group_of_its_own_is_alone_there_once_its_engine_has_asked_for_work() -> None:
    """A process that was never seen to ask may be its second rank, which hangs before its first step."""
    assert above_an_engine(BACKWARD, REDUCES, engine=(NEXT_REQUEST, GENERATES), steps=7) == [DRIVER]
    assert above_an_engine(BACKWARD, REDUCES, engine=(GENERATES,), steps=7) == [DRIVER, FIRST]


@pytest.mark.parametrize(
    ("parent", "engine", "rank"),
    [(LOADS, NEXT_REQUEST, DRIVER), (LOADS, GENERATES, FIRST), (LOADS, ASKS, FIRST), (JOINS, NEXT_REQUEST, FIRST)],
)
def test_before_the_first_step_an_engine_without_work_is_no_rank(
    parent: tuple[Frame, ...], engine: tuple[Frame, ...], rank: int
) -> None:
    """One that works may be all that the program is there for, and what is joined is never a servant."""
    assert above_an_engine(parent, engine=(engine,)) == [rank]


def test_ranks_that_train_below_a_process_that_trained_first_are_the_ranks() -> None:
    """It tried a few steps itself before it started them."""
    assert above_an_engine(BACKWARD, ASKS, engine=(BACKWARD,), engines=2, steps=7) == [FIRST, FIRST + 1]


@pytest.mark.parametrize(("waits_in", "state"), [(None, "healthy"), ("take", "hung")])
def test_an_engine_that_waits_for_work_neither_hangs_nor_hides_a_training_that_does(
    waits_in: str | None, state: str
) -> None:
    """For two minutes it is asked nothing, while the training makes steps, or waits for a lock."""
    until, pid = rank_looks.STOPPED + 120.0, rank_looks.FIRST
    history = rank_looks.job(1, trained=waits_in is not None)
    history.add(0.0, rank_looks.process(FIRST, pid, "python grpo.py"))
    history.add(21.0, Thread(pid=FIRST, tid=FIRST + 50, name="pt_nccl_watchdg", state="S", cpu_seconds=0.1))
    rank_looks.stands(history, FIRST, NEXT_REQUEST, rank_looks.FOR_EVER, until)
    if waits_in is None:
        rank_looks.runs(history, pid, rank_looks.STEP, rank_looks.BEGAN, until)
        for second in range(int(rank_looks.BEGAN) + 1, int(until)):
            done = int((second - rank_looks.BEGAN) / rank_looks.STEP_SECONDS)
            each = (rank_looks.STEP_SECONDS,) * 4
            steps = Steps(pid=pid, tid=pid, count=done, step_ago_seconds=0.1, interval_seconds=each)
            history.add(float(second), steps)
    else:
        line = (Frame(waits_in, rank_looks.TRAIN, 55), rank_looks.MODULE)
        rank_looks.stands(history, pid, line, rank_looks.FOR_EVER, until)

    verdict = rank_looks.judged(history, until)

    assert verdict.state == state
    assert {one.pid for one in verdict.culprits} <= {pid}


UNNUMBERED: dict[str, str] = {}
BY_SRUN = {"SLURM_PROCID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize("number", [UNNUMBERED, BY_SRUN], ids=["by a shell", "by srun"])
def test_a_training_is_not_last_behind_one_that_it_has_nothing_to_do_with(number: dict[str, str]) -> None:
    """The cards as of a rank that is late, of trainings that were only started together."""
    case = RECORDINGS / "straggling_rank" / "fires" / "straggling_rank-nccl"
    at, whole = expected_of(case).at, load_case(case)
    apart, together = History(), History()
    for one in whole.records:
        if one.at <= at:
            together.add(one.at, one.reading)
            if (reading := alone(one.reading, number)) is not None:
                apart.add(one.at, reading)
    apart.at = together.at = at
    group, strangers = (judge(Case(history, whole.session)) for history in (together, apart))

    assert group.cause == "straggling_rank"
    assert "straggling_rank" not in {strangers.cause, *(one.cause for one in strangers.findings)}


def alone(reading: Reading, number: dict[str, str]) -> Reading | None:
    """A reading of a training that is in no group, numbered by these words or not at all."""
    if isinstance(reading, Process):
        words = {name: word.format(rank=reading.rank) for name, word in number.items() if reading.rank is not None}
        return structs.replace(reading, rank=None, world_size=None, environment=words)
    if isinstance(reading, Thread) and reading.name.startswith(("pt_nccl", "pt_gloo", "NCCL")):
        return None
    if isinstance(reading, Stack) and any("/torch/distributed/" in frame.file for frame in reading.frames):
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
