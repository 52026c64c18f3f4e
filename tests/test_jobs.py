"""``perfwatch ps``: which processes are a job, which of them are ranks and workers, and how that is shown."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from perfwatch.errors import NoSuchTarget, NotATrainingJob, UsageError
from perfwatch.jobs.chosen import Wanted, choose
from perfwatch.jobs.discovery import (
    Known,
    ListedJob,
    ListedProcess,
    ListedVerdict,
    Listing,
    find_jobs,
    list_jobs,
    refuse_orphan,
    refuse_several,
)
from perfwatch.jobs.other_trees import Relatives, relatives
from perfwatch.jobs.target import find_job
from perfwatch.report.console import LIST_COLUMNS, console
from perfwatch.report.jobs import JobsReport
from perfwatch_probes.deadline import Inline
from tests.machines import UNREADABLE, FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """init, a shell, and somebody's Python without torch."""
    one = FakeMachine(tmp_path)
    one.process(1, 0, "/sbin/init", name="systemd", torch=False)
    one.process(50, 1, "-bash", name="bash", torch=False)
    one.process(60, 1, "python server.py", torch=False)
    return one


def listed(machine: FakeMachine) -> Listing:
    """What ``ps`` finds."""
    return list_jobs(machine.filesystem, Inline())


def rendered(listing: Listing, width: int = 80) -> list[str]:
    """The lines of the table."""
    stream = io.StringIO()
    Console(file=stream, width=width, _environ={}).print(JobsReport(listing))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_machine_without_training_has_no_jobs(machine: FakeMachine) -> None:
    """Python alone is no training."""
    assert listed(machine).jobs == ()
    assert rendered(listed(machine)) == ["no training job runs on this machine: no Python process has torch loaded"]


def test_one_script_is_one_job(machine: FakeMachine) -> None:
    """The shell and the server above it are not part of it."""
    machine.process(100, 50)

    (job,) = listed(machine).jobs
    assert (job.pid, job.command, [rank.pid for rank in job.ranks]) == (100, ("python", "train.py"), [100])


def test_torchrun_its_ranks_and_their_workers_are_one_job(machine: FakeMachine) -> None:
    """A worker inherits the RANK of its rank and is told by its parent."""
    machine.process(100, 50, "python torchrun train.py", name="torchrun")
    for rank, pid in enumerate((110, 120)):
        environ = f"RANK={rank} WORLD_SIZE=2 LOCAL_RANK={rank}"
        machine.process(pid, 100, environ=environ)
        machine.process(pid + 1, pid, name="pt_data_worker", environ=environ)

    (job,) = listed(machine).jobs
    assert (job.pid, job.world_size) == (100, 2)
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 110), (1, 120)]
    assert [(worker.rank, worker.pid) for worker in job.workers] == [(0, 111), (1, 121)]


def test_ranks_under_mpirun_are_one_job(machine: FakeMachine) -> None:
    """The launcher is not Python."""
    machine.process(100, 50, "mpirun -n 2 python train.py", name="mpirun", torch=False)
    machine.process(110, 100, environ="RANK=0 WORLD_SIZE=2")
    machine.process(120, 100, environ="RANK=1 WORLD_SIZE=2")

    (job,) = listed(machine).jobs
    assert (job.pid, len(job.ranks)) == (100, 2)


def test_a_launcher_with_torch_in_it_is_not_what_trains(machine: FakeMachine) -> None:
    """``accelerate launch`` with one process loads torch itself, and waits for the program that it has started."""
    machine.process(100, 50, "python /env/bin/accelerate launch train.py")
    machine.process(110, 100, "python train.py")

    (job,) = listed(machine).jobs
    assert (job.pid, [rank.pid for rank in job.ranks]) == (100, [110])


def test_two_scripts_of_one_shell_are_two_jobs(machine: FakeMachine) -> None:
    """Oldest first."""
    machine.process(100, 50)
    machine.process(200, 50, "python other.py")

    assert [job.pid for job in listed(machine).jobs] == [100, 200]


def test_kernel_threads_are_not_looked_at(machine: FakeMachine) -> None:
    """Thousands of them on a large machine; here one that would be taken for a job."""
    machine.process(2, 0, name="kthreadd", torch=False)
    machine.process(300, 2)

    assert listed(machine).jobs == ()


def test_processes_that_we_may_not_look_into_are_counted(machine: FakeMachine) -> None:
    """Missing is not zero: it may be the job that is searched; a zombie has nothing to look into."""
    machine.process(100, 1, torch=UNREADABLE, uid=1000)
    machine.process(101, 1, "", torch=UNREADABLE, state="Z")

    assert listed(machine).hidden == 1
    assert rendered(listed(machine), 120)[-1].startswith("1 Python process of other users: sudo ")
    assert rendered(listed(machine), 120)[1].split()[:3] == ["101", "root", "ZOMBIE"]


def test_of_the_processes_that_may_not_be_looked_into_those_of_its_program_may_be_ranks(machine: FakeMachine) -> None:
    """A daemon of root's in Python is none."""
    machine.process(100, 50, "python -u train.py --lr 1", environ="RANK=0 WORLD_SIZE=2")
    machine.process(101, 50, "python -u train.py --lr 1", torch=UNREADABLE, uid=1000)
    machine.process(102, 1, "python3 /usr/bin/networkd-dispatcher", torch=UNREADABLE, uid=1001)
    (job,), hidden = find_jobs(machine.filesystem, Inline())

    assert [process.pid for process in hidden] == [101, 102]
    assert [process.pid for process in job.among(hidden)] == [101]


def test_secrets_on_a_command_line_are_not_listed(machine: FakeMachine) -> None:
    """Whatever ``ps`` of the system may show."""
    machine.process(100, 50, "python train.py --api-key SECRETabc")

    assert listed(machine).jobs[0].command[-1] == "[redacted]"


def listed_process(pid: int, role: str = "rank", rank: int | None = None, ago: float | None = 0.1) -> ListedProcess:
    """A sleeping process that ran so many seconds ago."""
    return ListedProcess(pid=pid, role=role, rank=rank, state="S", ran_ago_seconds=ago)


def listed_job(pid: int = 100, **facts: object) -> ListedJob:
    """A job of one rank."""
    given = {"command": ("python", "a.py"), "uid": 0, "age_seconds": 9.0, "world_size": None, "workers": ()}
    return ListedJob(pid=pid, **{**given, "ranks": (listed_process(pid),), **facts})  # type: ignore[arg-type]


def test_a_job_has_one_line() -> None:
    """With the program, not where its interpreter lies, and the numbers of its cards in short."""
    job = listed_job(
        command=("/opt/venv/bin/python", "/opt/venv/bin/torchrun", "train.py"), world_size=2, gpus=(0, 1, 2, 5), step=12007,
        ranks=(listed_process(110, rank=0), listed_process(120, rank=1, ago=None)),
    )  # fmt: skip

    assert rendered(Listing(jobs=(job,), hidden=0), 100)[:2] == [
        "PID  USER  RANKS  GPUS   STEP    VERDICT     SILENT FOR  COMMAND",
        "100  root  2/2    0-2,5  12,007  not judged  100 ms      python torchrun train.py",
    ]


def test_ranks_and_the_most_silent_worker_are_shown_on_request() -> None:
    """And a process that is stopped or blocked always."""
    job = listed_job(
        world_size=2,
        ranks=(listed_process(110, rank=0), listed_process(120, rank=1, ago=None)),
        workers=(listed_process(111, "worker", 0), listed_process(121, "worker", 1, ago=412.0)),
    )
    stream = io.StringIO()
    Console(file=stream, width=100, _environ={}).print(JobsReport(Listing(jobs=(job,), hidden=0), ranks=True))
    pids = [line.split()[0] for line in stream.getvalue().splitlines()[2:-1]]
    stopped = msgspec.structs.replace(listed_process(120, rank=1), state="T")
    sick = rendered(Listing(jobs=(listed_job(ranks=(listed_process(110, rank=0), stopped)),), hidden=0))

    assert pids == ["110", "120", "121"]
    assert [line.split()[:2] for line in sick[2:-1]] == [["120", "stopped"]]


def test_the_worst_verdict_comes_first() -> None:
    """Before what nobody has judged, and that before what is healthy; what to type is about the worst."""
    jobs = tuple(
        listed_job(pid, verdict=ListedVerdict(state=state, cause=cause, by="run") if state else None)
        for pid, state, cause in ((100, "healthy", "balanced"), (200, "", ""), (300, "slow", "regressed"), (400, "hung", "stuck_worker"))
    )  # fmt: skip
    lines = rendered(Listing(jobs=jobs, hidden=0), 100)

    assert [line.split()[0] for line in lines[1:5]] == ["400", "300", "200", "100"]
    assert "HUNG stuck_worker" in lines[1]
    assert lines[-2:] == [
        "why: perfwatch attach 400",
        "a verdict for each: perfwatch ps --judge; for one: perfwatch attach PID",
    ]
    assert rendered(Listing(jobs=jobs[2:], hidden=0), 100)[-1] == "why: perfwatch attach 400"


def test_which_process_is_to_be_looked_at_is_said_of_jobs_that_are_not_well() -> None:
    """And what is suspected, with the time until it is sure."""
    stuck = ListedVerdict(state="hung", cause="stuck_worker", summary="worker 101 sleeps", by="judge")
    maybe = ListedVerdict(
        state="inconclusive",
        suspect=("hung", "waiting_for_file"),
        suspect_in_seconds=41.0,
        summary="it polls",
        by="run",
    )
    well = ListedVerdict(state="healthy", cause="balanced", summary="it trains", by="run")
    jobs = (listed_job(100, verdict=stuck), listed_job(200, verdict=maybe), listed_job(300, verdict=well))
    lines = rendered(Listing(jobs=jobs, hidden=0), 100)

    assert "HUNG? waiting_for_file" in lines[2]
    assert lines[4:] == [
        "pid 100: worker 101 sleeps",
        "pid 200: it polls (decides in 41 s)",
        "why: perfwatch attach 100",
    ]


def test_a_worker_whose_job_has_ended_is_an_orphan(machine: FakeMachine) -> None:
    """It is shown as that, and how to end it; it is no job that could be attached to."""
    machine.process(100, 1, name="pt_data_worker")
    (job,) = listed(machine).jobs
    lines = rendered(listed(machine), 160)

    assert job.kind == "orphan"
    assert "ORPHANED" in lines[1]
    assert lines[1].endswith("end it: kill 100")
    with pytest.raises(NotATrainingJob, match="orphaned DataLoader worker"):
        refuse_orphan(find_job(machine.filesystem, 100, Inline()), machine.filesystem, Inline())


@pytest.mark.parametrize("parent", ["python serve.py", ""])
def test_a_worker_whose_parent_may_be_its_training_is_no_orphan(machine: FakeMachine, parent: str) -> None:
    """A parent that is Python, and one whose command line cannot be read now: what is alive for a reason is not to be killed."""
    machine.process(30, 1, parent or "trainer", torch=UNREADABLE)
    machine.write("30/cmdline", parent.replace(" ", "\0"))
    machine.process(100, 30, name="pt_data_worker")

    assert [job.kind for job in listed(machine).jobs if job.pid == 100] == ["job"]
    assert not any("kill" in line for line in rendered(listed(machine), 160))
    refuse_orphan(find_job(machine.filesystem, 100, Inline()), machine.filesystem, Inline())


def test_a_worker_that_was_left_to_a_supervisor_is_an_orphan(machine: FakeMachine) -> None:
    """The user manager of systemd, or the shim of a container, adopts it instead of init."""
    machine.process(30, 1, "/usr/lib/systemd/systemd --user", name="systemd", torch=False)
    machine.process(100, 30, name="pt_data_worker")

    assert [job.kind for job in listed(machine).jobs] == ["orphan"]


def test_in_a_pipe_a_command_has_its_length_and_no_line_ends_in_blanks(machine: FakeMachine) -> None:
    """For grep and awk; a terminal has an edge."""
    command = "python train.py " + " ".join(f"--option-{number}=1" for number in range(40))
    machine.process(100, 50, command)
    machine.process(110, 100, command, name="pt_data_worker")
    stream = io.StringIO()
    console(stream, LIST_COLUMNS).print(JobsReport(listed(machine)))
    lines = stream.getvalue().splitlines()

    assert lines[1].endswith(command)
    assert lines == [line.rstrip() for line in lines]


def test_without_a_verdict_the_most_silent_job_comes_first() -> None:
    """A rank that waits for a stuck worker wakes every 5 s; workers of a rank that runs may be silent: they have enough in store."""
    stuck = (listed_process(201, "worker", ago=27.0), listed_process(202, "worker", ago=40.0))
    jobs = (
        listed_job(100, ranks=(listed_process(100, ago=0.1),), workers=(listed_process(101, "worker", ago=500.0),)),
        listed_job(200, ranks=(listed_process(200, ago=1.8),), workers=stuck),
        listed_job(300, ranks=(listed_process(300, ago=2.8),)),
    )

    assert [line.split()[0] for line in rendered(Listing(jobs=jobs, hidden=0))[1:4]] == ["200", "300", "100"]


def test_ranks_that_were_started_one_by_one_are_one_job(machine: FakeMachine) -> None:
    """One launcher for each rank: their environment names one master, and no rank is there twice."""
    for rank in range(2):
        environ = f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500"
        machine.process(100 + rank, 50, environ=environ)
        machine.process(200 + rank, 50, "python other.py", environ=environ.replace("29500", "29501"))

    assert [[rank.pid for rank in job.ranks] for job in listed(machine).jobs] == [[100, 101], [200, 201]]
    assert related(machine, 201) == Relatives(tops=(200,))


def related(machine: FakeMachine, pid: int) -> Relatives:
    """What else belongs to the job of a process."""
    return relatives(machine.filesystem, Inline(), find_job(machine.filesystem, pid, Inline()))


def test_two_jobs_with_one_port_are_two_jobs(machine: FakeMachine) -> None:
    """In two containers of one machine: both have a rank 0, so they are not one job."""
    for pid in (100, 200):
        machine.process(pid, 50, environ="RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500")
    network = machine.proc / "200/ns/net"
    network.unlink()
    network.symlink_to("net:[2]")

    assert [job.pid for job in listed(machine).jobs] == [100, 200]
    assert related(machine, 100) == Relatives()


def test_a_number_that_two_ranks_have_is_told_with_both_pids(machine: FakeMachine) -> None:
    """A script that was copied: where they meet one of them is turned away, or all wait. The shell above means the one job."""
    for pid, rank in ((100, 0), (101, 1), (102, 1)):
        environ = f"RANK={rank} WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
        machine.process(pid, 50, environ=environ)

    for asked_for in (100, 50):
        (told,) = related(machine, asked_for).unseen
        assert told.reason.endswith("with the same master 127.0.0.1:29500: rank 1: pid 101 and 102")
    asked(machine, 50)


def test_ranks_of_another_user_are_told_as_not_seen(machine: FakeMachine) -> None:
    """Only while ranks are missing: the same program may run for somebody else."""
    for size, told in ((2, True), (1, False)):
        machine.process(100 + size, 50, environ=f"RANK=0 WORLD_SIZE={size} MASTER_ADDR=a MASTER_PORT={29500 + size}")
        machine.process(200 + size, 50, torch=UNREADABLE, uid=1002)
        unseen = related(machine, 100 + size).unseen
        assert [one.advice for one in unseen] == [f"sudo perfwatch attach {100 + size}"] * told
        assert all("may not be looked into: pid 202 of uid 1002" in one.reason for one in unseen)


def test_the_steps_of_one_slurm_job_are_two_jobs(machine: FakeMachine) -> None:
    """Two trainings in one allocation, each with its own step and its own slurmstepd."""
    for step in range(2):
        top = 100 * (step + 1)
        machine.process(top, 1, f"slurmstepd: [7.{step}]", name="slurmstepd", torch=False)
        for rank in range(2):
            environ = f"SLURM_PROCID={rank} SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID={step}"
            machine.process(top + 1 + rank, top, environ=environ)

    assert [(job.pid, job.world_size, [one.rank for one in job.ranks]) for job in listed(machine).jobs] == [
        (100, 2, [0, 1]),
        (200, 2, [0, 1]),
    ]


def test_a_step_for_each_rank_with_one_master_is_one_job(machine: FakeMachine) -> None:
    """``srun --exact -n1 python train.py &`` for each card: that they meet at one address outweighs the steps."""
    for rank in range(2):
        environ = f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500 SLURM_JOB_ID=7 SLURM_STEP_ID={rank}"
        machine.process(100 + rank, 50, environ=environ)

    assert [[rank.pid for rank in job.ranks] for job in listed(machine).jobs] == [[100, 101]]


def test_a_training_below_a_program_that_uses_torch_itself_is_listed_once(machine: FakeMachine) -> None:
    """A sweep starts trainings through a shell: the shell parts them."""
    machine.process(100, 50, "python sweep.py")
    machine.process(110, 100, "sh -c train", name="sh", torch=False)
    machine.process(120, 110, environ="RANK=0 WORLD_SIZE=1")

    assert [[rank.pid for rank in job.ranks] for job in listed(machine).jobs] == [[100], [120]]


def asked(machine: FakeMachine, pid: int) -> None:
    """Somebody names this process."""
    refuse_several(machine.filesystem, Inline(), find_job(machine.filesystem, pid, Inline()))


@pytest.mark.parametrize("pid", [50, 1])
def test_a_shell_above_two_jobs_means_neither(machine: FakeMachine, pid: int) -> None:
    """Each is named with the command that looks at it; any process of one of them means that one."""
    machine.process(100, 50, "python hang.py")
    machine.process(110, 100, "python hang.py", name="pt_data_worker")
    machine.process(200, 50, "python train.py")

    with pytest.raises(UsageError, match=r"2 jobs are below process \d+") as error:
        asked(machine, pid)
    for one in (100, 110, 200):
        asked(machine, one)

    assert error.value.advice.splitlines() == [
        "perfwatch attach 100    # python hang.py",
        "perfwatch attach 200    # python train.py",
    ]


def test_a_script_that_starts_the_ranks_of_one_job_means_that_job(machine: FakeMachine) -> None:
    """Their environment names one master."""
    for rank in range(2):
        machine.process(100 + rank, 50, environ=f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500")

    asked(machine, 50)


def test_ranks_that_one_program_starts_to_meet_at_an_address_of_its_own_are_one_job(machine: FakeMachine) -> None:
    """``init_method`` names it, in no environment. The next two are another job: a sweep starts one after the other."""
    machine.process(90, 50, torch=False)
    for number, pid in enumerate((100, 101, 200, 201)):
        machine.process(pid, 90, f"python train.py {number}", environ=f"RANK={number % 2} WORLD_SIZE=2")

    assert [[rank.pid for rank in job.ranks] for job in listed(machine).jobs] == [[100, 101], [200, 201]]


@pytest.mark.parametrize("launcher", ["python /env/bin/torchrun train.py", "mpirun -n 2 python train.py"])
@pytest.mark.parametrize("pid", [50, 90])
def test_a_launcher_and_its_ranks_are_one_job_below_a_shell(machine: FakeMachine, launcher: str, pid: int) -> None:
    """Also before the launcher has torch loaded, and where the ranks' environment says nothing."""
    machine.process(90, 50, launcher, name=launcher.split()[0], torch=False)
    machine.process(100, 90)
    machine.process(200, 90)

    asked(machine, pid)


@pytest.mark.parametrize("pid", [50, 90])
def test_what_multiprocessing_started_is_one_job(machine: FakeMachine, pid: int) -> None:
    """The parent need not have torch itself."""
    machine.process(90, 50, "python train.py", torch=False)
    machine.process(100, 90, "python -c spawn_main() --multiprocessing-fork")
    machine.process(200, 90, "python -c spawn_main() --multiprocessing-fork")

    asked(machine, pid)


@pytest.mark.parametrize("pid", [50, 80])
def test_the_actors_of_ray_are_one_job(machine: FakeMachine, pid: int) -> None:
    """Whether or not the driver has torch."""
    machine.process(80, 50, "python tune.py", torch=False)
    machine.process(90, 80, "/env/ray/raylet", name="raylet", torch=False)
    machine.process(100, 90, "python ray::Actor")
    machine.process(200, 90, "python ray::Actor")

    asked(machine, pid)


def test_a_worker_whose_rank_has_ended_is_no_job_beside_the_others(machine: FakeMachine) -> None:
    """After an elastic restart it belongs to init for some seconds, which may be the shell of a container."""
    machine.process(100, 50)
    machine.process(110, 50, name="pt_data_worker")

    asked(machine, 50)


CONTAINER = "3f" * 32
POD_UID = "0e4b8c5a-1111-2222-3333-444455556666"


@pytest.fixture
def crowded(machine: FakeMachine) -> FakeMachine:
    """A job of a Slurm job, one in a pod, and one that only says that it is in that pod."""
    slurm = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"
    pod = f"0::/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
    for pid, command, groups in (
        (100, "python slurm.py", slurm),
        (200, "python pod.py", pod),
        (300, "python liar.py", "0::/user\n"),
    ):
        machine.process(pid, 1, command, environ="HOSTNAME=web-0" if pid > 100 else "")
        machine.write(f"{pid}/cgroup", groups)
    return machine


def chosen(machine: FakeMachine, tmp_path: Path, **wanted: Any) -> int:
    """The job that is meant."""
    known = {"trainer": CONTAINER}
    return choose(Wanted(**wanted), machine.filesystem, Inline(), {"PERFWATCH_DIR": str(tmp_path)},
                  id_of=lambda name: known.get(name, ""))[0]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "pid"),
    [
        ({"target": "slurm.py"}, 100),
        ({"target": "s.u.m"}, 100),
        ({"slurm": 4711}, 100),
        ({"pod": "web-0"}, 200),
        ({"pod": POD_UID}, 200),
        ({"container": CONTAINER[:12]}, 200),
        ({"container": "trainer"}, 200),
    ],
    ids=str,
)
def test_a_job_is_named_by_what_its_user_cannot_change(
    crowded: FakeMachine, tmp_path: Path, wanted: dict[str, Any], pid: int
) -> None:
    """Control groups; a host name counts within Kubernetes alone."""
    assert chosen(crowded, tmp_path, **wanted) == pid


@pytest.mark.parametrize(
    "wanted", [{"target": "none.py"}, {"slurm": 12}, {"pod": "web-1"}, {"container": "nobody"}], ids=str
)
def test_where_no_job_is_meant_that_is_said(crowded: FakeMachine, tmp_path: Path, wanted: dict[str, Any]) -> None:
    """With what was asked for."""
    with pytest.raises(NoSuchTarget, match=str(next(iter(wanted.values())))):
        chosen(crowded, tmp_path, **wanted)


def test_the_only_job_is_meant_and_of_several_none(machine: FakeMachine, tmp_path: Path) -> None:
    """Those that there are get listed, with what to type; an orphan is none, and a notebook only where nothing else runs."""
    machine.process(100, 1, name="pt_data_worker")
    machine.process(200, 1, "python -m ipykernel_launcher")
    assert chosen(machine, tmp_path) == 200
    machine.process(300, 1, "python train.py")
    assert chosen(machine, tmp_path) == 300
    machine.process(400, 1, "python other.py")
    with pytest.raises(UsageError, match="2 training jobs run on this machine") as told:
        chosen(machine, tmp_path)

    assert [line.split()[2] for line in told.value.advice.splitlines()] == ["300", "400"]


def test_jobs_of_one_command_are_told_apart_by_their_working_directories(machine: FakeMachine, tmp_path: Path) -> None:
    """In the list, where one has to choose, and as what names the job; a path is first of all a directory."""
    for number, pid in enumerate((100, 200)):
        (folder := tmp_path / f"run-{number}").mkdir()
        machine.process(pid, 1, "python train.py")
        (machine.proc / str(pid) / "cwd").symlink_to(folder)
    machine.process(300, 1, f"python {tmp_path}/run-1/other.py")
    lines = rendered(listed(machine), 200)
    with pytest.raises(UsageError) as told:
        chosen(machine, tmp_path, target="train.py")

    assert [line.split("  ")[-1].strip() for line in lines[1:3]] == [
        f"in {tmp_path}/run-{n}: python train.py" for n in (0, 1)
    ]
    assert " in " not in lines[3]
    assert f"perfwatch attach 200    # in {tmp_path}/run-1: python"[:120] in told.value.advice
    assert chosen(machine, tmp_path, target=f"{tmp_path}/run-1/") == 200
    assert listed(machine).jobs[0].working_directory == str(tmp_path / "run-0")


def test_a_part_of_a_job_that_has_ended_says_so() -> None:
    """Not just that it is a rank."""
    gone = msgspec.structs.replace(listed_process(120, rank=1), state="Z")
    unnumbered = msgspec.structs.replace(listed_process(121), state="T")
    lines = rendered(Listing(jobs=(listed_job(ranks=(listed_process(110), gone, unnumbered)),), hidden=0), 160)

    assert lines[2].endswith("training process")
    assert lines[3].endswith("rank 1 that has ended; its parent has not reaped it")


def test_of_several_jobs_the_one_that_hangs_is_named_first(crowded: FakeMachine, tmp_path: Path) -> None:
    """As its watcher says."""
    hung = Known(verdict=ListedVerdict(state="hung", cause="stuck_worker"))
    with pytest.raises(UsageError) as told:
        choose(Wanted(), crowded.filesystem, Inline(), {"PERFWATCH_DIR": str(tmp_path)},
               known=lambda job: hung if job.tops[0].pid == 200 else Known())  # fmt: skip

    first, second, _ = told.value.advice.splitlines()
    assert first == "perfwatch attach 200    # HUNG stuck_worker: python pod.py"
    assert second == "perfwatch attach 100    # python slurm.py"
