"""From any pid to its job, told on small recorded trees of /proc: each process is a folder with the files that we read."""

import os
import re
from pathlib import Path

import pytest

from perfwatch.errors import NoSuchTarget, NotATrainingJob, PermissionDenied
from perfwatch.jobs.target import Target, find_job
from perfwatch.watching.process_tree import Family
from perfwatch_probes import readings as r
from perfwatch_probes.deadline import Inline
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests

TORCH = "7f00-7f01 r--p 00000000 00:00 1 /lib/torch/libtorch_cpu.so\n"


class Machine:
    """A /proc under construction."""

    def __init__(self, proc: Path) -> None:
        self.filesystem = Filesystem(proc=proc)

    def add(
        self,
        pid: int,
        parent: int,
        name: str = "python",
        *,
        command: str = "python train.py",
        maps: str | None = "",
        executable: str | None = "/usr/bin/python3.11",
        state: str = "S",
        started: int = 1000,
        wait_status: int = 0,
        denied_io: bool = False,
    ) -> None:
        """One process; ``maps`` and ``executable`` None: they are hidden from us."""
        folder = self.filesystem.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = ["0"] * 52
        fields[0], fields[1], fields[2], fields[3] = str(pid), f"({name})", state, str(parent)
        fields[19], fields[21], fields[51] = "1", str(started), str(wait_status)
        (folder / "stat").write_text(" ".join(fields) + "\n")
        (folder / "status").write_text(f"Name:\t{name}\nTgid:\t{pid}\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0" if command else b"")
        (folder / "environ").write_bytes(b"")
        if not denied_io:
            (folder / "io").write_text("rchar: 0\n")
        if maps is not None:
            (folder / "maps").write_text(maps)
        if executable is not None:
            (folder / "exe").unlink(missing_ok=True)
            (folder / "exe").symlink_to(executable)

    def find(self, pid: int, there: bool = False) -> Target:
        """The job of a pid; ``there``: whether the kernel has it although /proc does not show it."""
        return find_job(self.filesystem, pid, Inline(), lambda pid: there)

    def family(self) -> Family:
        """Somebody who follows a job on this machine."""
        return Family(self.filesystem, Inline(), Guests(), lambda: 0.0)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A shell, torchrun, two ranks, a worker of the first."""
    one = Machine(tmp_path)
    one.add(10, 1, "bash", command="bash", executable="/bin/bash")
    one.add(20, 10, "torchrun", command="/usr/bin/python3 /usr/bin/torchrun train.py", maps=TORCH)
    one.add(30, 20, maps=TORCH, command="/usr/bin/python3 train.py")
    one.add(31, 20, maps=TORCH, command="/usr/bin/python3 train.py")
    one.add(40, 30, "pt_data_worker", maps=TORCH, command="/usr/bin/python3 train.py")
    return one


@pytest.mark.parametrize("pid", [20, 30, 31, 40])
def test_any_process_of_a_job_leads_to_its_top(machine: Machine, pid: int) -> None:
    """Launcher, ranks and worker are one job, and the shell above is not part of it."""
    found = machine.find(pid)

    assert (found.root.pid, found.asked.pid) == (20, pid)


@pytest.mark.parametrize(("first", "root"), [("python train.py", 1), ("init", 30)])
def test_pid_1_is_part_of_the_job_when_it_trains(tmp_path: Path, first: str, root: int) -> None:
    """In a container it may be torchrun or the rank itself; elsewhere it is everybody's ancestor."""
    machine = Machine(tmp_path)
    trains = first.startswith("python")
    machine.add(1, 0, first.split()[0], command=first, maps=TORCH if trains else "", executable=f"/bin/{first[:6]}")
    machine.add(30, 1, maps=TORCH)

    assert machine.find(30).root.pid == root


def test_a_shell_above_a_job_is_taken_at_its_word(machine: Machine) -> None:
    """Everything below it is looked at."""
    assert machine.find(10).root.pid == 10


def test_a_thread_leads_to_its_process(machine: Machine) -> None:
    """top -H shows thread ids, and /proc has a folder for each although it does not list them."""
    machine.add(33, 20, maps=TORCH)
    (machine.filesystem.proc / "33/status").write_text("Tgid:\t30\nUid:\t0\n")

    assert machine.find(33).asked.pid == 30


@pytest.mark.parametrize("pid", [20, 30, 40])
def test_the_job_of_another_user_is_found_by_its_command_lines(tmp_path: Path, pid: int) -> None:
    """Memory maps and executables are hidden then; what anybody may read is enough."""
    machine = Machine(tmp_path)
    machine.add(10, 1, "sshd", command="sshd", maps=None, executable=None)
    machine.add(20, 10, "torchrun", command="/usr/bin/python3 /bin/torchrun t.py", maps=None, executable=None)
    machine.add(30, 20, "python3", command="/usr/bin/python3 t.py", maps=None, executable=None)
    machine.add(40, 30, "pt_data_worker", command="/usr/bin/python3 t.py", maps=None, executable=None)

    assert machine.find(pid).root.pid == 20


def test_a_spawned_worker_of_another_user_leads_to_its_parent(tmp_path: Path) -> None:
    """multiprocessing says in the command line that it spawned it."""
    machine = Machine(tmp_path)
    machine.add(30, 1, "python3", command="/usr/bin/python3 t.py", maps=None, executable=None)
    machine.add(40, 30, "python3", command="python3 -c spawn_main() --multiprocessing-fork", maps=None, executable=None)

    assert machine.find(40).root.pid == 30


def test_a_service_of_another_user_above_the_job_is_not_part_of_it(tmp_path: Path) -> None:
    """A Python supervisor has another command line than what it started."""
    machine = Machine(tmp_path)
    machine.add(30, 1, "supervisord", command="/usr/bin/python3 supervisord", maps=None, executable=None)
    machine.add(40, 30, "python3", command="python3 t.py", maps=None, executable=None)

    assert machine.find(40).root.pid == 40


def test_perfwatch_run_above_torchrun_is_not_part_of_the_job(machine: Machine) -> None:
    """Its command line names torchrun, further on."""
    machine.add(20, 10, command="python perfwatch run -- torchrun train.py")
    machine.add(30, 20, maps=TORCH)

    assert machine.find(40).root.pid == 30


def test_a_program_started_from_a_notebook_that_uses_torch_is_a_job_of_its_own(machine: Machine) -> None:
    """Its parent has torch loaded, but neither forked it nor gave it a rank."""
    machine.add(20, 10, command="python -m ipykernel_launcher", maps=TORCH)
    machine.add(30, 20, command="python train.py", maps=TORCH)

    assert machine.find(30).root.pid == 30


@pytest.mark.parametrize(("starter", "root"), [("python", 20), ("systemd", 40)])
def test_an_actor_of_ray_leads_to_the_program_that_started_ray(tmp_path: Path, starter: str, root: int) -> None:
    """Its parent is the raylet, below the driver; that of a cluster has actors of other programs too."""
    machine = Machine(tmp_path)
    machine.add(10, 1, "bash", command="bash", executable="/bin/bash")
    machine.add(20, 10, starter, command=f"{starter} tune.py", executable=f"/usr/bin/{starter}")
    machine.add(30, 20, "raylet", command="/env/ray/core/src/ray/raylet/raylet --x", executable="/env/raylet")
    machine.add(40, 30, "ray::RayTrainWo", command="ray::RayTrainWorker", maps=TORCH)
    machine.add(41, 30, "ray::RayTrainWo", command="ray::RayTrainWorker", maps=TORCH)

    assert machine.find(40).root.pid == root


def test_no_such_pid_is_said_with_a_way_to_find_the_right_one(machine: Machine) -> None:
    """The advice is a command."""
    with pytest.raises(NoSuchTarget, match="no process 99") as error:
        machine.find(99)

    assert error.value.exit_code == 3
    assert error.value.advice.startswith("perfwatch ps")


def test_a_process_that_proc_hides_is_denied_not_missing(machine: Machine) -> None:
    """With hidepid=2 there is no folder, but the kernel knows the pid."""
    with pytest.raises(PermissionDenied, match="hidepid") as error:
        machine.find(99, there=True)

    assert error.value.exit_code == 77
    assert re.fullmatch(r"sudo \S*perfwatch attach 99", error.value.advice)


def test_nothing_python_is_no_training_job(tmp_path: Path) -> None:
    """A database is not judged as if it trained."""
    machine = Machine(tmp_path)
    machine.add(50, 1, "postgres", command="postgres", executable="/bin/postgres")

    with pytest.raises(NotATrainingJob, match="postgres") as error:
        machine.find(50)

    assert error.value.exit_code == 3


def test_perfwatch_below_the_shell_that_is_named_is_no_training_job(tmp_path: Path) -> None:
    """``perfwatch attach $$``: the only Python there are we, and our helpers."""
    machine = Machine(tmp_path)
    machine.add(50, 1, "bash", command="bash", executable="/bin/bash")
    machine.add(51, 50, command="python perfwatch attach 50")
    machine.add(52, 51, command="python perfwatch attach 50")

    with pytest.raises(NotATrainingJob, match=r"nothing in the process tree of 50 \(bash\) is Python"):
        find_job(machine.filesystem, 50, Inline(), own_pid=lambda: 51)


def test_we_and_our_helpers_are_not_followed_below_a_shell(tmp_path: Path) -> None:
    """They look at the job, and are none of its processes."""
    machine = Machine(tmp_path)
    machine.add(50, 1, "bash", command="bash", executable="/bin/bash")
    machine.add(os.getpid(), 50, command="python perfwatch attach 50")
    machine.add(os.getpid() + 1, os.getpid(), command="python perfwatch attach 50")

    assert [one.pid for one in machine.family().follow([50]) if isinstance(one, r.Process)] == [50]


def test_a_helper_of_perfwatch_is_no_job(tmp_path: Path) -> None:
    """Each stands beside the job in a list of processes."""
    machine = Machine(tmp_path)
    machine.add(50, 1, "perfwatch-watch", command="python perfwatch run", executable="/usr/bin/python3")

    with pytest.raises(NotATrainingJob, match="a helper of perfwatch itself") as error:
        machine.find(50)

    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("wait_status", "denied", "how"),
    [(9, False, (None, 9)), (3 << 8, False, (3, None)), (0, True, (None, None))],
)
def test_a_zombie_is_a_job_that_has_ended(
    tmp_path: Path, wait_status: int, denied: bool, how: tuple[int | None, int | None]
) -> None:
    """Its parent does not train, so it is a job of its own; a hidden exit code is not called 0."""
    machine = Machine(tmp_path)
    machine.add(59, 1, "python", command="python harness.py")
    machine.add(60, 59, state="Z", command="", executable=None, maps=None, wait_status=wait_status, denied_io=denied)

    target = machine.find(60)

    assert (target.root.pid, target.program.pid) == (60, 60)
    assert target.gone is not None
    assert (target.gone.exit_code, target.gone.signal) == how


def test_a_zombie_below_a_training_is_no_job_of_its_own(tmp_path: Path) -> None:
    """It was a worker: how it ended is said, and which job goes on."""
    machine = Machine(tmp_path)
    machine.add(59, 1, maps=TORCH)
    machine.add(60, 59, state="Z", command="", executable=None, maps=None, wait_status=9)

    with pytest.raises(NoSuchTarget, match="is a zombie") as error:
        machine.find(60)

    assert error.value.advice == "perfwatch attach 59"


def test_a_reused_pid_is_not_the_job(tmp_path: Path) -> None:
    """The root ended and a stranger has its pid: the job is gone, and the stranger is not looked at."""
    machine = Machine(tmp_path)
    machine.add(30, 1, maps=TORCH)
    family = machine.family()
    family.expect(machine.find(30).root)
    family.follow([30])
    machine.add(30, 1, "postgres", command="postgres", executable="/bin/postgres", started=5000)
    machine.add(31, 30, "postgres", command="postgres", executable="/bin/postgres", started=5001)

    said = family.follow([30])

    assert [(type(one), one.pid, one.start_ticks) for one in said if isinstance(one, r.ProcessEnded)] == [
        (r.ProcessEnded, 30, 1000)
    ]
    assert (len(said), family.known) == (1, {})


def test_a_pid_reused_before_the_first_look_is_not_the_job(tmp_path: Path) -> None:
    """Who was asked for is known; that it ended is said together with who it was."""
    machine = Machine(tmp_path)
    machine.add(30, 1, maps=TORCH)
    family = machine.family()
    family.expect(machine.find(30).root)
    machine.add(30, 1, "postgres", command="postgres", executable="/bin/postgres", started=5000)

    first, second = family.follow([30]), family.follow([30])

    assert [type(one).__name__ for one in first] == ["Process", "ProcessEnded"]
    assert (second, family.known) == ([], {})


def test_children_of_a_root_that_ended_are_still_followed(machine: Machine) -> None:
    """torchrun was killed, its ranks go on: the end of the one is told, the others are known."""
    family = machine.family()
    family.follow([20])
    for file in (machine.filesystem.proc / "20").iterdir():
        file.unlink()
    (machine.filesystem.proc / "20").rmdir()
    machine.add(30, 1, maps=TORCH)

    said = family.follow([20])

    assert [one.pid for one in said if isinstance(one, r.ProcessEnded)] == [20]
    assert sorted(family.known) == [30, 31, 40]
