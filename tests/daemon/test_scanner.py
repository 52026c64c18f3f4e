"""Jobs are found as they appear, at next to no cost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch.daemon.scanner import AGAIN_SECONDS, Scanner
from perfwatch.probes.deadline import Inline
from perfwatch.probes.filesystem import Filesystem

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
