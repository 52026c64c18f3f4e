"""Jobs are found as they appear, at next to no cost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch.daemon.scanner import AGAIN_SECONDS, Scanner
from perfwatch.jobs.slurm_job import SlurmJob
from perfwatch.ownership import slurm_job_of
from perfwatch_probes.deadline import Inline
from perfwatch_probes.filesystem import Filesystem

TORCH = "7f00-7f01 r-xp 0 08:01 1 /opt/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so\n"
PLAIN = "7f00-7f01 r-xp 0 08:01 1 /usr/bin/python3.11\n"

Add = Callable[..., None]


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


class Counting(Filesystem):
    """Counts what is read of a memory map: the expensive part of knowing a process."""

    looks = 0

    def read_bytes(self, path: "str | Path", most_bytes: int | None = None) -> bytes:
        """The file, up to so many bytes."""
        if str(path).endswith("/maps"):
            Counting.looks += 1
        return super().read_bytes(path, most_bytes)


@pytest.fixture
def add(tmp_path: Path) -> Add:
    """Adds a process to a machine made of files."""

    def process(
        pid: int,
        parent: int = 1,
        *,
        torch: bool = True,
        command: str = "python train.py",
        name: str = "python",
        start: int = 0,
    ) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["0"] * 50
        fields[0], fields[1], fields[19] = "S", str(parent), str(start or pid)
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (folder / "environ").write_bytes(b"")
        (folder / "maps").write_text(TORCH if torch else PLAIN)

    return process


@pytest.fixture
def scanner(tmp_path: Path) -> "tuple[Scanner, Clock]":
    """A scanner of that machine."""
    clock = Clock()
    return Scanner(Counting(proc=tmp_path), Inline(), clock), clock


def test_a_job_is_the_tree_below_its_topmost_process_with_torch(add: Add, scanner: "tuple[Scanner, Clock]") -> None:
    """torchrun, its two ranks and their shell; a second job beside it."""
    add(10, command="bash job.sh", name="bash", torch=False)
    add(11, 10, command="python torchrun train.py")
    add(12, 11)
    add(13, 11)
    add(20, command="python other.py")

    found = scanner[0].scan()

    assert [(one.root.pid, one.trainers) for one in found] == [(11, (11, 12, 13)), (20, (20,))]
    assert scanner[0].ancestors(13) == {13, 11, 10}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m ipykernel_launcher -f x.json", "python"),
        ("/opt/bin/python /opt/bin/jupyter-lab", "python"),
        ("python -m pytest tests", "python"),
        ("python train.py", "pt_data_worker"),
    ],
)
def test_what_is_no_run_is_left_alone(add: Add, scanner: "tuple[Scanner, Clock]", command: str, name: str) -> None:
    """A notebook waits for its user most of the time; an orphaned worker is about to end."""
    add(10, command=command, name=name)

    assert scanner[0].scan() == []


def test_a_program_becomes_a_job_when_it_imports_torch(add: Add, scanner: "tuple[Scanner, Clock]") -> None:
    """It is looked at again a little later, and then ever less."""
    one, clock = scanner
    add(10, torch=False)

    assert one.scan() == []

    add(10)

    assert one.scan() == []

    clock.now = AGAIN_SECONDS

    assert [job.root.pid for job in one.scan()] == [10]


def test_a_thousand_scans_of_a_quiet_machine_look_at_nothing_twice(add: Add, scanner: "tuple[Scanner, Clock]") -> None:
    """In an hour and a half each process is looked at about as often as it takes minutes to be sure of it."""
    one, clock = scanner
    for pid in range(10, 30):
        add(pid, torch=False, command="sshd", name="sshd")
    Counting.looks = 0
    for turn in range(1000):
        clock.now = 5.0 * turn
        one.scan()

    assert Counting.looks <= 20 * 25


def test_a_pid_that_is_used_again_is_another_job(add: Add, scanner: "tuple[Scanner, Clock]", tmp_path: Path) -> None:
    """Known by pid and start time."""
    one = scanner[0]
    add(10)
    before = one.scan()[0].key
    for file in (tmp_path / "10").iterdir():
        file.unlink()
    (tmp_path / "10").rmdir()

    assert one.scan() == []

    add(10, start=77)

    assert one.scan()[0].key == (10, 77)
    assert before == (10, 10)


@pytest.fixture
def place(add: Add, tmp_path: Path) -> Callable[..., None]:
    """Adds a rank of a user's, in a control group and with a job id in its environment."""

    def rank(
        pid: int, parent: int = 1, *, uid: int = 1001, group: str = "/", job: str = "", name: str = "python"
    ) -> None:
        add(pid, parent, name=name)
        folder = tmp_path / str(pid)
        (folder / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\n")
        (folder / "cgroup").write_text(f"5:freezer:/\n0::{group}\n")
        (folder / "environ").write_bytes(f"SLURM_JOB_ID={job}\0".encode() if job else b"")

    return rank


def ranks_of_slurm_job(proc: Path, uid: int | None) -> list[int]:
    """The ranks of job 7 that a scanner finds."""
    filesystem = Filesystem(proc=proc)
    scanner = Scanner(filesystem, Inline(), Clock(), uid, SlurmJob(7, uid))
    return [pid for one in scanner.scan() for pid in one.trainers]


def test_the_control_group_of_slurmd_decides(place: Callable[..., None], tmp_path: Path) -> None:
    """Before anything that a user can write; other jobs of the same user are left to their own watch."""
    place(10, group="/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", job="8")
    place(11, group="/system.slice/slurmstepd.scope/job_8/step_0/user/task_0", job="7")
    place(12, group="/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", job="7")

    assert ranks_of_slurm_job(tmp_path, 1001) == [10]
    assert ranks_of_slurm_job(tmp_path, None) == [10]


def test_an_environment_is_believed_about_its_user_alone(place: Callable[..., None], tmp_path: Path) -> None:
    """Outside the groups of slurmd; without a user to hold it against, it says nothing."""
    place(10, job="7")
    place(11, job="7", uid=1002)
    place(12, job="8")
    place(13)
    place(14, 10)  # started with an environment of its own making
    place(15, 11, uid=1001)  # its parent is another user's

    assert ranks_of_slurm_job(tmp_path, 1001) == [10, 14]
    assert ranks_of_slurm_job(tmp_path, None) == []


def test_a_rank_below_roots_slurmstepd_is_its_users(place: Callable[..., None], add: Add, tmp_path: Path) -> None:
    """The process at the top of the job belongs to root, the job to its user."""
    add(9, name="slurmstepd", command="slurmstepd: [7.0]", torch=False)
    place(10, 9, group="/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")

    found = Scanner(Filesystem(proc=tmp_path), Inline(), Clock(), 1001).scan()

    assert [(one.root.pid, one.trainers) for one in found] == [(9, (10,))]
    assert ranks_of_slurm_job(tmp_path, 1001) == [10]


@pytest.mark.parametrize(
    ("memberships", "job_id"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("0::/system.slice/slurmstepd.scope/job_7/step_extern/slurm", 7),
        ("0::/system.slice/gpu-3_slurmstepd.scope/job_7/step_batch/user/task_special", 7),
        ("0::/hpc.slice/hpc-slurm.slice/slurmstepd.scope/job_7", 7),
        ("11:memory:/slurm/uid_1001/job_7/step_0/task_0\n4:freezer:/slurm/uid_1001/job_7/step_0", 7),
        ("9:cpuset:/\n4:freezer:/slurm_gpu-3/uid_1001/job_7/step_batch", 7),
        ("0::/system.slice/slurmstepd.scope/system", None),
        ("0::/system.slice/slurmd.service", None),
        # A user may have made these.
        ("0::/user.slice/user-1001.slice/user@1001.service/slurmstepd.scope/job_7", None),
        ("0::/user.slice/user-1001.slice/user@1001.service/app.slice/slurmstepd.scope/job_7", None),
        ("0::/user.slice/user-1001.slice/user@1001.service/slurm/uid_1001/job_7", None),
        ("0::/system.slice/docker-abc.scope/system.slice/slurmstepd.scope/job_7", None),
        ("0::/../system.slice/slurmstepd.scope/job_7", None),
        ("0::/job_7", None),
        ("", None),
    ],
)
def test_only_a_control_group_that_root_made_names_a_job(memberships: str, job_id: int | None) -> None:
    """Of version 1 and 2, of one slurmd and of several; a user's own subtree names none."""
    assert slurm_job_of(memberships + "\n") == job_id
