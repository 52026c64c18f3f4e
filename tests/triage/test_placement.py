"""Which processes are ranks, and which number they have, under each launcher: trees of /proc as those launchers make them."""

import msgspec
import pytest
from msgspec import structs

from perfwatch.recording.recording import Record
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job, read_job
from perfwatch.triage.roles.placement import launches, program_of
from perfwatch_probes.readings import Frame, Process, ProcessEnded, Stack

SPAWN = "/env/lib/python3.12/site-packages/torch/multiprocessing/spawn.py"
TRAIN = "python train.py"

C10D = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


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


def job(*readings: Process | ProcessEnded | Stack) -> Job:
    """Who is who among them."""
    return read_job(History((Record(0.0, 0.0, reading) for reading in readings), 1.0))


def ranks(found: Job) -> dict[int | None, int]:
    """Pid by rank."""
    return {rank.rank: rank.pid for rank in found.ranks}


def test_torchrun_numbers_its_ranks_and_their_workers_inherit_the_number() -> None:
    """Two ranks, each with a worker."""
    found = job(
        process(10, 1, "python /env/bin/torchrun train.py"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 LOCAL_RANK={n}") for n in range(2)),
        *(process(30 + n, 20 + n, environment=f"RANK={n} WORLD_SIZE=2", name="pt_data_worker") for n in range(2)),
    )

    assert (ranks(found), found.world_size, found.numbered) == ({0: 20, 1: 21}, 2, True)
    assert {m.pid: (m.role, m.rank) for m in found.members.values() if m.pid >= 30} == {
        30: ("worker", 0),
        31: ("worker", 1),
    }


@pytest.mark.parametrize(
    "command",
    [
        "python /usr/local/bin/torchrun --nnodes 2 train.py",
        "python -m torch.distributed.run train.py",
        "python -u /env/bin/accelerate launch train.py",
        "python -u -m deepspeed.launcher.launch --world_info=e30= train.py",
        "python /env/bin/deepspeed train.py",
    ],
)
def test_the_number_of_the_host_that_a_launcher_inherited_is_not_a_rank(command: str) -> None:
    """Kubeflow's operator sets RANK on the container: its rank 0 is the first rank below, and the launcher is none."""
    found = job(
        process(10, 1, command, "RANK=0 WORLD_SIZE=2"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=16 LOCAL_RANK={n}") for n in range(8)),
    )

    assert (ranks(found), found.world_size) == ({n: 20 + n for n in range(8)}, 16)
    assert found.members[10].role == "launcher"


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
    """The program makes RANK of it where nobody outside can see."""
    found = job(
        process(10, 1, "orted --hnp", name="orted"),
        *(process(20 + n, 10, environment=f"{rank.replace('{}', str(n + 2))} {size}") for n in range(2)),
        process(30, 21, environment=f"{rank.replace('{}', '3')} {size}", name="pt_data_worker"),
    )

    assert (ranks(found), found.world_size, found.covered) == ({2: 20, 3: 21}, 4, False)
    assert found.members[30].role == "worker"


def test_a_batch_script_is_no_rank_although_slurm_numbers_it() -> None:
    """It has the number 0 of as many tasks as were asked for, and trains alone."""
    found = job(process(20, 1, environment="SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7"))

    assert (ranks(found), found.world_size) == ({None: 20}, None)


def test_torchrun_below_srun_is_numbered_by_torchrun() -> None:
    """Slurm numbers the hosts there, and its numbers are inherited by the ranks."""
    slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7"
    found = job(
        process(5, 1, "slurmstepd: [7.0]", name="slurmstepd"),
        process(10, 5, "python /env/bin/torchrun train.py", slurm),
        *(process(20 + n, 10, environment=f"{slurm} RANK={8 + n} WORLD_SIZE=16") for n in range(8)),
    )

    assert (sorted(map(int, filter(None, ranks(found)))), found.world_size) == (list(range(8, 16)), 16)


def test_a_program_that_spawns_its_ranks_stands_for_its_host() -> None:
    """RANK is the host's number there, as in the ImageNet example: its four children are ranks 4 to 7 of 8."""
    wait = Stack(pid=10, tid=10, frames=(Frame("join", SPAWN, 132), Frame("main", "/app/main.py", 90)))
    found = job(
        process(10, 1, "python main.py", "RANK=1 WORLD_SIZE=2"),
        wait,
        *(
            process(20 + n, 10, "python -c from_multiprocessing.spawn --multiprocessing-fork", "RANK=1 WORLD_SIZE=2")
            for n in range(4)
        ),
    )

    assert (ranks(found), found.world_size) == ({4 + n: 20 + n for n in range(4)}, 8)


def test_a_plain_spawn_is_numbered_by_us() -> None:
    """In the order of their start."""
    wait = Stack(pid=10, tid=10, frames=(Frame("join", SPAWN, 132), Frame("main", "/app/main.py", 90)))
    found = job(process(10, 1, "python main.py"), wait, *(process(20 + n, 10, "python main.py") for n in range(2)))

    assert (ranks(found), found.numbered) == ({0: 20, 1: 21}, False)


def test_ranks_that_only_talk_to_each_other_are_numbered_by_us_once_one_is_in_a_collective() -> None:
    """Trees of their own, without a number: trainings that were started together stay apart until then."""
    trees = [process(20 + n, 1, f"python stage.py {n} 3") for n in range(3)]
    receives = Stack(pid=21, tid=21, frames=(Frame("recv", C10D, 2600), Frame("forward", "/app/stage.py", 40)))

    assert ranks(job(*trees, receives)) == {0: 20, 1: 21, 2: 22}
    assert [one.rank for one in job(*trees).ranks] == [None, None, None]


def test_an_elastic_restart_replaces_the_ranks() -> None:
    """The youngest that lives has the number."""
    found = job(
        process(10, 1, "python /env/bin/torchrun train.py"),
        *(process(20 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0") for n in range(2)),
        *(process(40 + n, 10, environment=f"RANK={n} WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=1") for n in range(2)),
    )

    assert ranks(found) == {0: 40, 1: 41}


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --launcher torchrun", "train.py"),
        ("python -X importtime -u -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -c pass", None),
        ("python", None),
    ],
)
def test_what_a_python_runs_is_told_by_its_command_line(command: str, program: str | None) -> None:
    """A script's own arguments are not taken for it."""
    assert program_of(tuple(command.split())) == program
    assert launches(process(1, 0, command)) is (program == "torch.distributed.run")


def test_a_helper_that_inherits_a_number_given_within_the_training_is_no_rank() -> None:
    """``MPI_Init`` numbers the training's own process, which shows in what it starts afterwards alone."""
    shipper = structs.replace(process(20, 10, "python -c ship", "PMIX_RANK=0 PMIX_NAMESPACE=7"), torch_loaded=False)
    found = job(process(10, 1), shipper, process(21, 10, name="pt_data_worker"))

    assert ranks(found) == {None: 10}


def test_a_rank_that_has_not_imported_torch_yet_is_one_below_a_launcher_that_has() -> None:
    """A script that has torch starts its ranks and waits for them."""
    waits = (Frame("wait", "/usr/lib/python3.12/subprocess.py", 1264), Frame("main", "/app/launch.py", 9))
    rank = structs.replace(process(20, 10, environment="RANK=0 WORLD_SIZE=1"), torch_loaded=False)
    found = job(process(10, 1, "python launch.py"), rank, Stack(pid=10, tid=10, frames=waits))

    assert ranks(found) == {0: 20}


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


def ray(*titles: str, frames: tuple[Frame, ...] = TRAINS) -> list[Process | Stack]:
    """A driver that Slurm has numbered, its raylet, and below that processes with these titles, from pid 40 on."""
    slurm = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0"
    found: list[Process | Stack] = [
        process(20, 1, environment=slurm),
        process(30, 20, RAY + "core/src/ray/raylet/raylet --x", slurm, name="raylet"),
    ]
    for pid, title in enumerate(titles, 40):
        one = process(pid, 30, title, slurm, name=title[:15])
        found.append(msgspec.structs.replace(one, python=True, torch_loaded=True))
        found.append(Stack(pid=pid, tid=pid, frames=TAKES_CALLS, samples=1))
        if "Worker" in title or "Func" in title:
            found.append(Stack(pid=pid, tid=pid + 100, frames=frames, samples=1))
    return found


def test_the_workers_of_ray_train_are_the_ranks_and_its_controller_is_none() -> None:
    """Whatever they inherited: their own numbers were given to them where nobody sees it."""
    found = job(
        *ray("ray::TrainController.run", "ray::RayTrainWorker", "ray::SynchronizationActor", "ray::RayTrainWorker")
    )

    assert (ranks(found), found.numbered, found.apart) == ({0: 41, 1: 43}, False, False)
    assert {m.pid: m.role for m in found.members.values() if m.rank_pid is None} == {
        20: "launcher",
        30: "service",
        40: "launcher",
        42: "launcher",
    }


def test_the_workers_of_several_controllers_have_no_numbers() -> None:
    """Trials of a sweep that train on several workers each: who is with whom is not seen."""
    titles = ("ray::TrainController.run", "ray::TrainController.run", "ray::RayTrainWorker", "ray::RayTrainWorker")

    assert [(one.pid, one.rank) for one in job(*ray(*titles)).ranks] == [(42, None), (43, None)]


def test_trials_of_ray_tune_are_trainings_by_themselves() -> None:
    """Their driver only waits for them."""
    found = job(*ray("ray::ImplicitFunc.train", "ray::ImplicitFunc.train", "ray::IDLE", frames=TRIES))

    assert sorted((one.pid, one.rank) for one in found.ranks) == [(40, None), (41, None)]
    assert found.apart


def test_the_older_trainer_in_a_trial_of_its_own_is_no_rank() -> None:
    """It waits for its workers in a thread that is like a trial's, with nothing of the program's own."""
    waits = (Frame("training_loop", RAY + "train/data_parallel_trainer.py", 400), TRIES[-1])
    found = job(*ray("ray::ImplicitFunc.train", frames=waits))

    assert ranks(found) == {0: 20}


def test_workers_that_have_ended_are_ranks_no_more() -> None:
    """Ray replaces the group; where all are gone, the program that started them is looked at."""
    readings = ray("ray::RayTrainWorker", "ray::RayTrainWorker")
    gone = [ProcessEnded(pid=pid, start_ticks=pid) for pid in (40, 41)]

    assert ranks(job(*readings, gone[0])) == {None: 41}
    assert 20 in {one.pid for one in job(*readings, *gone).ranks}
