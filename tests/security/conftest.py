"""Attacks that run for real: root types a perfwatch command, and an unprivileged user tries to turn it against the machine.

The attacker and a second user are uids without an account; what they own lies in folders of their own below /tmp, because pytest's
folders are root's alone. Every wait is for a line that the other side prints.
"""

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.uids import own_uid

MALLORY, VICTIM = own_uid(0), own_uid(1)
DEADLINE_SECONDS = 60.0  # for broken code, never a wait
PERFWATCH = (sys.executable, "-m", "perfwatch")
# What makes a process a training job to perfwatch: it maps a file of this name.
JOB = """
import mmap, os, sys, time
with open({library!r}, "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def ready():
    print("ready", flush=True)
{body}
"""

Popen = subprocess.Popen[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The attacks need a root that can be attacked."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder) and item.get_closest_marker("without_root") is None and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root, who is attacked by another user"))


def as_user(uid: int) -> tuple[str, ...]:
    """The words before a command that make it this user's."""
    return ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups")


@dataclass
class User:
    """An unprivileged user of the machine, with a private folder."""

    uid: int
    home: Path

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, to its end."""
        return subprocess.run(
            (*as_user(self.uid), *command), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=check,
            cwd=self.home,
        )  # fmt: skip

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file of this user's in the private folder."""
        path = self.home / name
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)
        return path

    def place(self, pid: int) -> Path:
        """A place in shared memory, as ``perfwatch run`` would make it for this process; it has its root file."""
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        folder = Path(f"/dev/shm/perfwatch-{self.uid}/run-{pid}-{ticks}")
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, exist_ok=True)
            os.chown(made, self.uid, self.uid)
        root = folder / "root-0"
        root.write_text(f'{{"pid": {pid}, "start_ticks": {ticks}, "launcher": {pid}}}')
        os.chown(root, self.uid, self.uid)
        return folder


def line(process: Popen) -> str:
    """What a process prints next; fails when nothing comes."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_SECONDS)
    assert ready, f"process {process.pid} is silent"
    return process.stdout.readline().strip()


def _user(uid: int) -> Iterator[User]:
    home = Path(tempfile.mkdtemp(prefix=f"perfwatch-attack-{uid}-", dir="/tmp"))
    home.chmod(0o755)
    os.chown(home, uid, uid)
    yield User(uid, home)
    shutil.rmtree(home, ignore_errors=True)
    for parent in ("/dev/shm", "/tmp", "/var/tmp"):
        shutil.rmtree(f"{parent}/perfwatch-{uid}", ignore_errors=True)


@pytest.fixture
def mallory() -> Iterator[User]:
    """The attacker."""
    yield from _user(MALLORY)


@pytest.fixture
def victim() -> Iterator[User]:
    """Another user, whom the attacker wants to harm."""
    yield from _user(VICTIM)


@pytest.fixture
def start_job() -> Iterator[Callable[..., Popen]]:
    """Starts a program of a user's that perfwatch takes for a training job; its ``body`` calls ``ready()`` when it is."""
    started: list[Popen] = []

    def start(
        user: User, body: str = "ready(); time.sleep(1e6)", environment: dict[str, str] | None = None, wait: bool = True
    ) -> Popen:
        library = user.write("libtorch_cpu.so", "not a library\n")
        program = user.write(f"job-{len(started)}.py", JOB.format(library=str(library), body=body))
        process = subprocess.Popen(
            (*as_user(user.uid), sys.executable, str(program)), text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=user.home,
            env={"PATH": os.environ["PATH"], "HOME": str(user.home)} | (environment or {}),
        )  # fmt: skip
        started.append(process)
        if wait:
            assert line(process) == "ready"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE_SECONDS)


@pytest.fixture
def root_types(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a perfwatch command as root, with its sessions in a folder of this test."""

    def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*PERFWATCH, *words), capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS,
            env={**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), **(environment or {})},
        )  # fmt: skip

    return run
